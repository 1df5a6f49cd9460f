"""Who may import whom, and what each part works without."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

IMPORT_ALL = textwrap.dedent(
    """
    import importlib, importlib.abc, pkgutil, sys

    blocked, wanted, skipped = (set(argument.split(",")) for argument in sys.argv[1:4])

    class Blocker(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in blocked:
                raise ModuleNotFoundError(f"{name} is blocked here", name=name)
            return None

    sys.meta_path.insert(0, Blocker())
    imported = []
    for root in wanted:
        module = importlib.import_module(root)
        imported.append(root)
        for found in pkgutil.walk_packages(getattr(module, "__path__", []), root + "."):
            if not any(found.name == name or found.name.startswith(name + ".") for name in skipped):
                importlib.import_module(found.name)
                imported.append(found.name)
    assert not blocked & {name.partition(".")[0] for name in sys.modules}, "a blocked module was loaded"
    print(len(imported))
    """
)


def import_without(blocked: str, wanted: str, skipped: str = "-") -> int:
    """Import all modules below the wanted ones where the blocked ones cannot be had; how many there were."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, blocked, wanted, skipped],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_import_directions() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_server_needs_no_torch_and_no_nixl() -> None:
    assert import_without("torch,nixl,nixl_cu12,nixl_cu13,numpy", "weightcast_server") > 20


def test_the_store_needs_no_web_framework() -> None:
    assert (
        import_without("torch,nixl,fastapi,starlette,uvicorn", "weightcast_server.store,weightcast_server.domain") > 5
    )


def test_the_library_needs_no_server() -> None:
    assert import_without("fastapi,starlette,uvicorn,prometheus_client,weightcast_server", "weightcast") > 20


@pytest.mark.parametrize(
    "module",
    ["weightcast.client", "weightcast.session", "weightcast.contract", "weightcast.errors", "weightcast.cli.main"],
)
def test_client_and_command_line_need_the_base_only(module: str) -> None:
    assert import_without("torch,nixl,numpy,xxhash,fastapi,starlette,uvicorn,prometheus_client", module) >= 1
