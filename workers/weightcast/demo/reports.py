"""What the demo's processes tell each other: a setting goes down as one JSON line, reports come up as JSON lines."""

from __future__ import annotations

import os
import threading

import msgspec

MODEL = "policy"
"""Name under which the demo publishes."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that goes through the pipes."""


class TrainerSettings(Message, frozen=True, kw_only=True):
    """What one trainer process needs to know."""

    server_url: str
    run: str
    rank: int
    world_size: int
    rollouts: int
    versions: int
    interval_seconds: float
    min_steps: int
    refit_timeout_seconds: float
    directory: str


class RolloutSettings(Message, frozen=True, kw_only=True):
    """What one rollout process needs to know."""

    server_url: str
    replica: str
    index: int


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """The process has started and is registered; the server tells its address."""

    url: str = ""


class Trained(Message, frozen=True, kw_only=True, tag="trained"):
    """A training step is done."""

    step: int
    loss: float
    seconds: float


class Published(Message, frozen=True, kw_only=True, tag="published"):
    """A trainer rank has published its part of a version."""

    rank: int
    version: int
    step: int
    digest: str
    seconds: float


class Refitted(Message, frozen=True, kw_only=True, tag="refitted"):
    """Every replica computes with the version, so many seconds after the call that published it."""

    version: int
    seconds: float


class Applied(Message, frozen=True, kw_only=True, tag="applied"):
    """A rollout computes with a version and has tried it out."""

    replica: str
    version: int
    digest: str
    held_out_loss: float
    text: str
    nbytes: int
    fetch_seconds: float
    pause_seconds: float
    transport: str


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """The process gives up."""

    message: str


Report = Ready | Trained | Published | Refitted | Applied | Failed

_encoder = msgspec.json.Encoder()
_report_decoder = msgspec.json.Decoder(Report)


def encode_line(message: Message) -> bytes:
    """The message as one line."""
    return _encoder.encode(message) + b"\n"


def decode_report(line: bytes) -> Report:
    """The report in a line."""
    return _report_decoder.decode(line)


class Reporter:
    """Sends reports from any thread of a child process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, report: Report) -> None:
        """Write one report; a parent that is gone is nobody to tell."""
        line = memoryview(encode_line(report))
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                return
