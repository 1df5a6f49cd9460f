"""Pages made from code are up to date, and what the README shows runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.server import ServerProcess

ROOT = Path(__file__).parents[1]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date() -> None:
    for page, text in _generator().pages().items():
        assert page.read_text() == text, f"run `make docs`: {page.name} is out of date"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.timeout(180)
def test_the_readme_example_runs(tmp_path: Path) -> None:
    """The two programs of the README, as they stand, against one server."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    trainer, rollout = blocks
    # The README's loop ends a minute after the last version; three versions are enough here.
    rollout = rollout.replace("timeout=60", "timeout=15")
    with ServerProcess(tmp_path) as server:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", program],
                env={**os.environ, "WEIGHTCAST_SERVER_URL": server.url},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for program in (rollout, trainer)
        ]
        try:
            outputs = [process.communicate(timeout=120)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "2 is version 3" in outputs[1]
    assert "serving 3" in outputs[0]
