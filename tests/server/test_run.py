"""Settings and start of the server, as far as no process is needed."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from weightcast_server.logs import configure_logs, get_logger
from weightcast_server.run import listen, serve, url_of, write_ready
from weightcast_server.settings import Settings, split_tokens


def test_the_entry_point_is_serve() -> None:
    (found,) = entry_points(group="weightcast.server", name="serve")
    assert found.load() is serve


def test_every_setting_is_described_and_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(field.description for field in Settings.model_fields.values())
    monkeypatch.setenv("WEIGHTCAST_LEASE_SECONDS", "2.5")
    monkeypatch.setenv("WEIGHTCAST_TRAINER_TOKENS", "s3cret-1, s3cret-2,,")
    settings = Settings()
    assert settings.lease_seconds == 2.5
    assert split_tokens(settings.trainer_tokens) == ["s3cret-1", "s3cret-2"]
    assert settings.authenticated
    assert "s3cret" not in repr(settings)
    assert Settings(lease_seconds=3).lease_seconds == 3, "arguments go first"


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_seconds": 0},
        {"lease_seconds": float("nan")},
        {"port": 65536},
        {"synchronous": "off"},
        {"ssl_certfile": "x"},
        {"viewer_tokens": SecretStr("with space")},
        {"unknown": 1},
    ],
    ids=str,
)
def test_wrong_settings(wrong: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValidationError):
        Settings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as caught:
        serve(**wrong)
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("weightcast serve: ")
    assert "with space" not in shown


def test_refusal_names_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serve(host="0.0.0.0")
    assert "WEIGHTCAST_ALLOW_UNAUTHENTICATED" in capsys.readouterr().err


def test_a_free_port_is_taken_and_announced(tmp_path: Path) -> None:
    with contextlib.closing(listen("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener, "http") == f"http://127.0.0.1:{port}"
        listener.listen()
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", port)
    with contextlib.closing(listen("0.0.0.0", 0)) as listener:
        assert url_of(listener, "https").startswith("https://127.0.0.1:")
    if socket.has_ipv6:
        with contextlib.suppress(OSError), contextlib.closing(listen("::1", 0)) as listener:
            assert url_of(listener, "http").startswith("http://[::1]:")
    path = tmp_path / "url"
    write_ready(path, "http://x")
    assert path.read_text() == "http://x\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("kept_logging")
def test_logs_are_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "auto")
    get_logger("test.logs").info("hello", version=3)
    get_logger("test.logs").debug("not shown")
    logging.getLogger("other").warning("from %s", "stdlib")
    secret = "boom"
    try:
        int(secret)
    except ValueError:
        get_logger("test.logs").exception("failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["hello", "from stdlib", "failed"]
    assert (lines[0]["version"], lines[0]["level"], lines[1]["logger"]) == (3, "info", "other")
    assert "invalid literal" in json.dumps(lines[2])
    assert "locals" not in json.dumps(lines[2]), "local variables may be secrets"


@pytest.mark.usefixtures("kept_logging")
def test_logs_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("warning", "console")
    get_logger("test.console").warning("careful", version=3)
    assert "careful" in capsys.readouterr().err
