"""Settings of the server: one class, read from ``WEIGHTCAST_…`` environment variables or given as keyword arguments."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Everything that can be chosen about a server. Each field is the variable ``WEIGHTCAST_<FIELD>``."""

    model_config = SettingsConfigDict(env_prefix="WEIGHTCAST_", extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = Field("127.0.0.1", description="Address to listen on. Anything but loopback needs tokens.")
    port: int = Field(8470, ge=0, le=65_535, description="TCP port; 0 takes a free one (see ready_file).")
    database: Path = Field(Path("weightcast.db"), description="SQLite file, created when absent. One server per file.")
    synchronous: Literal["normal", "full"] = Field(
        "normal", description="SQLite durability: normal survives a killed process, full also a power loss."
    )
    ready_file: Path | None = Field(None, description="File that gets the bound URL once the server answers.")
    ssl_certfile: Path | None = Field(None, description="PEM certificate chain; turns on TLS.")
    ssl_keyfile: Path | None = Field(None, description="PEM private key of ssl_certfile.")

    lease_seconds: float = Field(
        15.0, ge=0.1, le=86_400, description="A worker silent for this long is lost, and with it what it holds."
    )
    max_heartbeats_per_second: float = Field(
        2000.0, ge=1, le=1_000_000, description="Heartbeat intervals grow with the fleet to stay below this rate."
    )
    pull_timeout_seconds: float = Field(
        300.0, ge=0.1, le=86_400, description="A pull being read that makes no progress for this long fails."
    )
    broken_reports: int = Field(
        3, ge=1, le=1000, description="Distinct readers that must report a holding broken before it is dropped."
    )

    trainer_tokens: SecretStr = Field(SecretStr(""), description="Comma-separated bearer tokens of trainers.")
    rollout_tokens: SecretStr = Field(SecretStr(""), description="Comma-separated bearer tokens of rollouts.")
    operator_tokens: SecretStr = Field(SecretStr(""), description="Comma-separated bearer tokens of operators.")
    viewer_tokens: SecretStr = Field(SecretStr(""), description="Comma-separated bearer tokens that may only read.")
    allow_unauthenticated: bool = Field(
        False, description="Listen off loopback without any token. Everyone who reaches the port is then an operator."
    )

    max_body_nbytes: int = Field(
        8 * 2**20, ge=1024, le=2**30, description="Largest JSON body with NIXL metadata; others: 64 KiB."
    )
    max_layout_nbytes: int = Field(16 * 2**20, ge=1024, le=2**30, description="Largest compressed layout.")
    max_waiters: int = Field(20_000, ge=0, le=1_000_000, description="Requests that may be parked at the same time.")
    backlog: int = Field(16_384, ge=1, le=65_535, description="Connections that may wait to be accepted.")
    drain_seconds: float = Field(
        1.0, ge=0, le=3600, description="On SIGTERM, requests still running after this are cancelled."
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level logged.")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, JSON lines otherwise."
    )
    access_log: bool = Field(False, description="Log every request.")

    @field_validator("trainer_tokens", "rollout_tokens", "operator_tokens", "viewer_tokens")
    @classmethod
    def _tokens_are_printable(cls, value: SecretStr) -> SecretStr:
        for token in split_tokens(value):
            if not token.isascii() or not token.isprintable() or " " in token:
                raise ValueError("tokens are printable ASCII without spaces")
        return value

    @model_validator(mode="after")
    def _guarded_off_loopback(self) -> Self:
        if not self.authenticated and not self.allow_unauthenticated and not is_loopback(self.host):
            raise ValueError(
                f"refusing to listen on {self.host} without tokens: set WEIGHTCAST_OPERATOR_TOKENS and the like, "
                "listen on 127.0.0.1, or set WEIGHTCAST_ALLOW_UNAUTHENTICATED=true"
            )
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile are given together")
        return self

    @property
    def authenticated(self) -> bool:
        """Whether callers need a token."""
        secrets = (self.trainer_tokens, self.rollout_tokens, self.operator_tokens, self.viewer_tokens)
        return any(split_tokens(secret) for secret in secrets)


def split_tokens(value: SecretStr) -> list[str]:
    """The tokens of one comma-separated setting."""
    return [token.strip() for token in value.get_secret_value().split(",") if token.strip()]


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
