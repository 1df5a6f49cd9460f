"""Creating NIXL agents: what its Python API does not offer a choice of."""

from __future__ import annotations

import threading
from typing import Any

from weightcast.engines.ucx import apply_environment, backend_parameters
from weightcast.errors import TransferError

_creation_lock = threading.Lock()


def create_agent(name: str, progress_delay_us: int | None) -> Any:
    """Create an agent over UCX. ``progress_delay_us``: longest sleep of its progress thread; None for no thread.

    Raises:
        ImportError: NIXL is not installed.
        TransferError: NIXL cannot create it.
    """
    apply_environment()
    try:
        import nixl._api as api
    except ImportError as error:
        raise ImportError("NIXL is not installed: pip install 'weightcast[worker]' (or pip install nixl)") from error
    config = api.nixl_agent_config(enable_prog_thread=progress_delay_us is not None, backends=[])
    with _creation_lock, _progress_delay(api.nixlBind, progress_delay_us or 0):
        try:
            agent = api.nixl_agent(name, config)
            agent.create_backend("UCX", backend_parameters())
        except Exception as error:
            raise TransferError(f"NIXL cannot create an agent: {type(error).__name__}: {error}") from error
    return agent


class _progress_delay:  # noqa: N801 - reads as a context manager
    """While entered, NIXL's Python API creates agents whose progress thread sleeps instead of spinning.

    The API class sets ``pthrDelay = 0`` on a config object of the binding without offering a way to choose; the binding
    takes any value. A subclass that keeps ours is put in its place for the length of the constructor.
    """

    def __init__(self, bindings: Any, delay_us: int) -> None:
        self._bindings, self._original = bindings, bindings.nixlAgentConfig
        original = self._original

        class Config(original):  # type: ignore[misc, valid-type]
            def __setattr__(self, key: str, value: object) -> None:
                original.__setattr__(self, key, delay_us if key == "pthrDelay" else value)

        self._config = Config

    def __enter__(self) -> None:
        self._bindings.nixlAgentConfig = self._config

    def __exit__(self, *_error: object) -> None:
        self._bindings.nixlAgentConfig = self._original


def error_types() -> tuple[type[BaseException], ...]:
    """NIXL's exception classes, which share no base but Exception."""
    import nixl._api as api

    named = [
        getattr(api.nixlBind, name) for name in dir(api.nixlBind) if name.startswith("nixl") and name.endswith("Error")
    ]
    return tuple(kind for kind in named if isinstance(kind, type) and issubclass(kind, BaseException))
