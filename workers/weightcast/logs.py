"""Structured logs of the worker library, through the standard library's ``weightcast`` logger.

An application that configures `logging` itself sees readable lines with the facts attached (``record.weightcast``);
`configure` is for processes that are ours: the CLI, the demo and the benchmarks.
"""

from __future__ import annotations

import logging
import sys
from typing import IO, Any, Final, Literal, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]

ROOT: Final = "weightcast"
_FACTS: Final = "weightcast"


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger of this library; independent of any `structlog.configure` of the application."""
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            _to_record,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast("structlog.stdlib.BoundLogger", logger)


def configure(level: LogLevel = "info", style: LogFormat = "auto", stream: IO[str] | None = None) -> None:
    """Write the library's records to ``stream`` (stderr): columns on a terminal, JSON lines anywhere else."""
    stream = stream or sys.stderr
    console = style == "console" or (style == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(console=console, colors=console and stream.isatty()))
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def _to_record(_logger: WrappedLogger, _method: str, event: EventDict) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The arguments of `logging.Logger.info` and the like: a readable message, the facts beside it."""
    facts = dict(event)
    arguments: dict[str, Any] = {"exc_info": facts.pop("exc_info", None), "extra": {_FACTS: facts}}
    shown = [f"{key}={value}" for key, value in facts.items() if key != "event"]
    # A percent sign in a value is text, not a format: the message goes in as an argument.
    return ("%s", " ".join([str(facts.get("event", "")), *shown])), arguments


class _Formatter(logging.Formatter):
    """Renders records of this library by their facts, and any other record by its message."""

    def __init__(self, *, console: bool, colors: bool) -> None:
        super().__init__()
        self._time = structlog.processors.TimeStamper(fmt="%H:%M:%S" if console else "iso", utc=not console)
        self._render = (
            structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0)
            if console
            else structlog.processors.JSONRenderer(default=str)
        )

    def format(self, record: logging.LogRecord) -> str:
        """One line (a traceback may follow on a console)."""
        level = record.levelname.lower()
        facts: dict[str, Any] = getattr(record, _FACTS, None) or {"event": record.getMessage()}
        event: EventDict = {"level": level, "logger": record.name, "pid": record.process, **facts}
        if record.exc_info and record.exc_info[0] is not None:
            event["exception"] = self.formatException(record.exc_info)
        return str(self._render(None, level, self._time(None, level, event)))
