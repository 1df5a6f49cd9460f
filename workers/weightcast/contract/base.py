"""Base classes of the wire models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RequestModel(BaseModel):
    """A body that the server reads: unknown fields are refused, so that a typo never becomes a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ResponseModel(BaseModel):
    """A body that a client reads: unknown fields are ignored, because servers are upgraded first."""

    model_config = ConfigDict(extra="ignore", frozen=True)
