"""Settings and logs of the worker library."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from pydantic import ValidationError
from weightcast import logs
from weightcast.contract.names import Role
from weightcast.contract.workers import RegisterWorker
from weightcast.settings import WorkerSettings, default_host


@pytest.fixture
def _log_state() -> Iterator[None]:
    logger = logging.getLogger(logs.ROOT)
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def test_the_environment_is_read_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTCAST_SERVER_URL", "https://control:8470/base/")
    monkeypatch.setenv("WEIGHTCAST_TOKEN", "s3cret")
    monkeypatch.setenv("WEIGHTCAST_WORKER_ZONE", "z1")
    settings = WorkerSettings(worker_zone="z2")
    assert settings.server_url == "https://control:8470/base"
    assert settings.worker_zone == "z2"
    assert "s3cret" not in repr(settings)
    with settings.control_plane() as control:
        assert control.url == "https://control:8470/base"


def test_a_servers_variables_do_not_disturb_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTCAST_HOST", "0.0.0.0")
    monkeypatch.setenv("WEIGHTCAST_TRAINER_TOKENS", "a,b")
    assert WorkerSettings().worker_host == default_host()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server_url", "control:8470"),
        ("worker_host", "no spaces here"),
        ("call_timeout_seconds", float("nan")),
        ("call_timeout_seconds", float("inf")),
        ("connect_timeout_seconds", -1),
        ("answer_timeout_seconds", 0),
        ("log_level", "loud"),
        ("invented", 1),
    ],
)
def test_senseless_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        WorkerSettings.model_validate({name: value})


@pytest.mark.parametrize("name", ["", "...", "über", "a" * 200, "10.0.0.1", "_x_"])
def test_any_machine_name_becomes_a_valid_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: name)
    body = RegisterWorker(
        model="m", role=Role.TRAINER, rank=0, world_size=1, run="r", incarnation="0" * 32, host=default_host()
    )
    assert 0 < len(body.host) < 64


@pytest.mark.usefixtures("_log_state")
def test_logs_are_json_off_a_terminal() -> None:
    stream = io.StringIO()
    logs.configure("info", stream=stream)
    logger = logs.get_logger("weightcast.test")
    logger.info("registered", worker="policy:trainer:0", share="100%d")
    logger.debug("unseen")
    try:
        int("boom")
    except ValueError:
        logger.exception("broken")
    logging.getLogger("weightcast.other").warning("plain %s", "text")
    first, second, third = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (first["event"], first["worker"], first["share"]) == ("registered", "policy:trainer:0", "100%d")
    assert first["level"] == "info"
    assert "ValueError: invalid literal" in second["exception"]
    assert third["event"] == "plain text"


@pytest.mark.usefixtures("_log_state")
def test_logs_are_columns_on_a_console() -> None:
    stream = io.StringIO()
    logs.configure("debug", "console", stream)
    logs.get_logger("weightcast.test").warning("lease_lost", epoch=3)
    assert "lease_lost" in stream.getvalue()
    assert "epoch=3" in stream.getvalue()


def test_an_application_with_its_own_logging_sees_readable_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="weightcast"):
        logs.get_logger("weightcast.test").info("registered", worker="w", epoch=3)
    assert caplog.messages == ["registered worker=w epoch=3"]
