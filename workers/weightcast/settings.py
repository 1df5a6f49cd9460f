"""Settings of workers and of the CLI: one class, read from ``WEIGHTCAST_…`` environment variables."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from weightcast.client import ControlPlane
from weightcast.contract.names import Name
from weightcast.logs import LogFormat, LogLevel

Timeout = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


def default_host() -> str:
    """This machine's name in the form that the contract allows."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63].strip("._-")
    return name or "localhost"


class WorkerSettings(BaseSettings):
    """Everything that can be chosen about how a worker finds the server and presents itself.

    Each field is the variable ``WEIGHTCAST_<FIELD>``; keyword arguments win over the environment.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTCAST_", extra="forbid", frozen=True, hide_input_in_errors=True)

    server_url: str = Field("http://127.0.0.1:8470", description="Base URL of the control plane.")
    token: SecretStr | None = Field(None, description="Bearer token of this worker's role.")
    ca_file: Path | None = Field(None, description="PEM file with the CA of an https server; the system's by default.")

    worker_host: Name = Field(
        default_factory=default_host, description="Machine name; readers prefer sources of their own."
    )
    worker_rack: Name | None = Field(None, description="Rack or NVLink domain; preferred next.")
    worker_zone: Name | None = Field(None, description="Zone; preferred next.")

    connect_timeout_seconds: Timeout = Field(3.0, description="Longest time to connect to the server.")
    answer_timeout_seconds: Timeout = Field(10.0, description="A try without an answer for this long is repeated.")
    call_timeout_seconds: Timeout = Field(30.0, description="Longest time of one call, all its tries included.")
    leave_timeout_seconds: Timeout = Field(3.0, description="Longest time that saying goodbye may take.")

    log_level: LogLevel = Field("info", description="Least severe level logged.")
    log_format: LogFormat = Field("auto", description="auto: console on a terminal, JSON lines otherwise.")

    @field_validator("server_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
            raise ValueError("write http://host:port or https://host:port")
        return value.rstrip("/")

    def control_plane(self) -> ControlPlane:
        """A client with these settings. The caller closes it."""
        return ControlPlane(
            self.server_url,
            self.token.get_secret_value() if self.token else None,
            deadline_seconds=self.call_timeout_seconds,
            answer_seconds=self.answer_timeout_seconds,
            connect_seconds=self.connect_timeout_seconds,
            ca_file=self.ca_file,
        )
