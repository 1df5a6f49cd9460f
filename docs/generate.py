"""Writes the pages that are made from code: `python docs/generate.py` (or `make docs`); a test compares them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightcast.contract.problems import CATALOGUE
from weightcast.settings import WorkerSettings
from weightcast_server.settings import Settings

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

DOCS = Path(__file__).parent


def problems() -> str:
    """The table of problem codes."""
    rows = [
        f"| `{code}` | {kind.status} | {kind.title} | {'yes' if kind.retryable else 'no'} | {kind.remedy} |"
        for code, kind in CATALOGUE.items()
    ]
    head = "# Problem codes\n\nMade from the catalogue in `weightcast.contract.problems`.\n\n"
    return head + "| code | status | means | retryable | do |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def settings() -> str:
    """The tables of environment variables."""
    parts = ["# Settings\n\nMade from the settings classes. Each is an environment variable.\n"]
    for title, kind in (("Server", Settings), ("Workers and command line", WorkerSettings)):
        parts.append(f"\n## {title}\n\n| variable | default | meaning |\n|---|---|---|\n")
        parts += [_row(kind, name) for name in kind.model_fields]
    return "".join(parts)


def pages() -> dict[Path, str]:
    """Every generated page."""
    return {DOCS / "problems.md": problems(), DOCS / "settings.md": settings()}


def _row(kind: type[BaseSettings], name: str) -> str:
    field = kind.model_fields[name]
    return f"| `WEIGHTCAST_{name.upper()}` | {_default(field.default, field.default_factory)} | {field.description} |\n"


def _default(value: Any, factory: Any) -> str:
    if factory is not None:
        return "this machine's name"
    text = str(value.get_secret_value() if hasattr(value, "get_secret_value") else value)
    return f"`{text}`" if text and value is not None else "–"


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
