"""One NIXL agent and the thread that owns it.

NIXL agents are not thread-safe, hold the GIL in some calls and block in others, so each has one owner thread and
everybody else sends it work. What NIXL raises or returns on failure becomes one error type here.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import os
import queue
import threading
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, Literal, TypeVar

import structlog

from weightcast.contract.names import PullFailure
from weightcast.contract.workers import Agent as AgentInfo
from weightcast.engines.binding import create_agent, error_types
from weightcast.errors import DeadlineExceeded, ForkUnsupported, TransferError
from weightcast.memory import HostBuffer

T = TypeVar("T")
_log = structlog.get_logger("weightcast.engines.agent")
Purpose = Literal["serve", "fetch"]

SERVE_PROGRESS_DELAY_US: Final = 5_000
"""Longest sleep of a serving agent's native progress thread, in microseconds. It serves connection set-up and TCP
however busy the interpreter is; measured: 0.7 % of a core idle (1,000: 2 %, NIXL's default 0: a whole core), with equal
READ speed, because pending network events wake it at once."""

IDLE_SECONDS: Final = 0.5
"""How often an idle owner thread drops unread notifications and looks after quarantined transfers."""


class DisconnectedError(TransferError):
    """The peer is gone: a READ from it that was in flight has ended, and nothing of it will land any more."""


class NixlHandle:
    """A prepared READ that can be posted again and again."""

    __slots__ = ("__weakref__", "nbytes", "peer", "raw")

    def __init__(self, raw: Any, peer: str, nbytes: int) -> None:
        self.raw: Any = raw
        self.peer = peer
        self.nbytes = nbytes


class NixlAgent:
    """A NIXL agent without notifications: registration, peers and READs. To be used on one thread only."""

    def __init__(self, name: str, progress_delay_us: int | None) -> None:
        self.name = name
        self._nixl = create_agent(name, progress_delay_us)
        self._errors = error_types()
        self._handles: weakref.WeakSet[NixlHandle] = weakref.WeakSet()

    def register(self, buffer: HostBuffer) -> Any:
        """Register a buffer; the caller keeps buffer and registration until :meth:`deregister`."""
        with self._translate("register memory", self.name):
            return self._nixl.register_memory([(buffer.address, buffer.nbytes, 0, "")], "DRAM")

    def deregister(self, registration: Any) -> None:
        """End a registration. Never while a READ of or into it is in flight."""
        with self._translate("deregister memory", self.name):
            self._nixl.deregister_memory(registration)

    def metadata(self) -> bytes:
        """What a peer loads to read this agent's registered memory."""
        with self._translate("export metadata", self.name):
            return bytes(self._nixl.get_agent_metadata())

    def add_peer(self, name: str, metadata: bytes) -> None:
        """Load a peer's metadata and prove that it is that peer's."""
        with self._translate("load metadata", name):
            loaded = self._nixl.add_remote_agent(metadata)
        if loaded not in {name, name.encode()}:
            with self._translate("forget metadata", name):
                self._nixl.remove_remote_agent(loaded)
            raise TransferError(f"its metadata is that of {loaded!r}", reason=PullFailure.METADATA_CORRUPT, peer=name)

    def remove_peer(self, name: str) -> None:
        """Forget a peer. Never while a READ from it is in flight."""
        with self._translate("remove peer", name):
            self._nixl.remove_remote_agent(name)

    def prepare_read(self, local_address: int, remote_address: int, nbytes: int, peer: str) -> NixlHandle:
        """Prepare a READ of ``nbytes`` bytes of host memory."""
        with self._translate("prepare a READ", peer):
            local = self._nixl.get_xfer_descs([(local_address, nbytes, 0)], "DRAM")
            remote = self._nixl.get_xfer_descs([(remote_address, nbytes, 0)], "DRAM")
            handle = NixlHandle(self._nixl.initialize_xfer("READ", local, remote, peer), peer, nbytes)
        self._handles.add(handle)
        return handle

    def post(self, handle: NixlHandle) -> bool:
        """Start a READ; True when it is already done (shared memory copies inside this call)."""
        with self._translate("READ its memory", handle.peer):
            return self._done(self._nixl.transfer(handle.raw), handle)

    def poll(self, handle: NixlHandle) -> bool:
        """Drive progress; True when the READ is done."""
        with self._translate("READ its memory", handle.peer):
            return self._done(self._nixl.check_xfer_state(handle.raw), handle)

    def release(self, handle: NixlHandle) -> None:
        """Free a handle that is not in flight. It is emptied, so that nobody else's reference frees it elsewhere."""
        raw, handle.raw = handle.raw, None
        if raw is not None:
            with self._translate("release a READ", handle.peer):
                raw.release()

    def discard_notifications(self) -> None:
        """Drop what peers sent: nothing here is driven by notifications, and NIXL queues them without bound."""
        with self._translate("read notifications", self.name):
            self._nixl.get_new_notifs()

    def destroy(self) -> None:
        """Destroy the agent: the only thing that ends a READ in flight.

        A NIXL handle that survives keeps the agent and its READ alive, so every handle is emptied first, also those
        that an exception's traceback still refers to.
        """
        for handle in list(self._handles):
            handle.raw = None
        self._nixl = None
        gc.collect()

    def _done(self, state: str, handle: NixlHandle) -> bool:
        if state == "ERR":
            raise TransferError("NIXL reports ERR", reason=PullFailure.SOURCE_UNREACHABLE, peer=handle.peer)
        return state == "DONE"

    def _translate(self, action: str, peer: str) -> _Translator:
        return _Translator(self._errors, action, peer)


class _Translator:
    """Turns NIXL's exception classes, which share no base but Exception, into TransferError."""

    __slots__ = ("_action", "_errors", "_peer")

    def __init__(self, errors: tuple[type[BaseException], ...], action: str, peer: str) -> None:
        self._errors, self._action, self._peer = errors, action, peer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        if error is not None and isinstance(error, self._errors):
            detail = f"could not {self._action}: {type(error).__name__}: {error}"
            kind_of = DisconnectedError if type(error).__name__ == "nixlRemoteDisconnectError" else TransferError
            raise kind_of(detail, reason=PullFailure.SOURCE_UNREACHABLE, peer=self._peer) from error


class AgentThread:
    """The owner thread of one agent: runs calls in order, and ``on_idle`` now and then.

    Raises:
        TransferError: NIXL cannot create the agent.
        DeadlineExceeded: it did not within ``start_timeout`` seconds.
    """

    def __init__(self, purpose: Purpose, *, start_timeout: float = 60.0) -> None:
        self.purpose: Purpose = purpose
        self._jobs: queue.SimpleQueue[tuple[Callable[[NixlAgent], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._on_idle: Callable[[NixlAgent], None] = NixlAgent.discard_notifications
        self._pid = os.getpid()
        self._closed = False
        self.agent: NixlAgent | None = None
        self._thread = threading.Thread(target=self._run, name=f"weightcast-{purpose}", daemon=True)
        self._started: Future[None] = Future()
        self._thread.start()
        _result(self._started, start_timeout, f"create the {purpose} agent")

    @property
    def name(self) -> str:
        """The agent's name: random per agent, so that a restarted process is never taken for the one before it."""
        if self.agent is None:
            raise TransferError(f"the {self.purpose} agent is closed")
        return self.agent.name

    def call(self, job: Callable[[NixlAgent], T], timeout: float, what: str) -> T:
        """Run ``job(agent)`` on the owner thread and return its result.

        Raises:
            DeadlineExceeded: no result within ``timeout`` seconds; the job may still be running.
        """
        return _result(self.submit(job), timeout, what)

    def submit(self, job: Callable[[NixlAgent], T]) -> Future[T]:
        """Queue ``job(agent)`` for the owner thread."""
        if os.getpid() != self._pid:
            raise ForkUnsupported("A NIXL agent", self._pid, os.getpid())
        if self._closed:
            raise TransferError(f"the {self.purpose} agent is closed")
        future: Future[T] = Future()
        self._jobs.put((job, future))
        return future

    @property
    def alive(self) -> bool:
        """Whether the owner thread still runs (it may be stuck inside NIXL)."""
        return self._thread.is_alive()

    def on_idle(self, callback: Callable[[NixlAgent], None]) -> None:
        """Set what runs on the owner thread every half second while it has nothing to do."""
        self._on_idle = callback

    def rebuild(self) -> NixlAgent:
        """Destroy the agent and make a new one under a new name. To be called by a job on the owner thread."""
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.destroy()
        return self._present()

    def info(self, timeout: float = 30.0) -> AgentInfo:
        """The agent as it is registered with the control plane."""
        metadata = self.call(NixlAgent.metadata, timeout, "export the agent's metadata")
        return AgentInfo(
            name=self.name,
            purpose=self.purpose,
            metadata=base64.b64encode(metadata).decode(),
            metadata_digest=hashlib.sha256(metadata).hexdigest(),
        )

    def close(self, timeout: float = 10.0) -> bool:
        """Destroy the agent and end the thread; False when it is stuck inside NIXL and was left behind."""
        if self._closed or os.getpid() != self._pid:
            return True
        self._closed = True
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.agent = self._make()
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        while True:
            try:
                work = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                self._idle()
                continue
            if work is None:
                break
            job, future = work
            try:
                future.set_result(job(self._present()))
            except BaseException as error:
                future.set_exception(error)
            del work, job, future
        if self.agent is not None:
            self.agent.destroy()
            self.agent = None

    def _make(self) -> NixlAgent:
        delay = SERVE_PROGRESS_DELAY_US if self.purpose == "serve" else None
        return NixlAgent(f"wc-{self.purpose}-{uuid.uuid4().hex}", delay)

    def _present(self) -> NixlAgent:
        """The agent; made anew where an earlier rebuild had failed."""
        if self.agent is None:
            self.agent = self._make()
        return self.agent

    def _idle(self) -> None:
        try:
            if self.agent is not None:
                self._on_idle(self.agent)
        except Exception as error:
            _log.warning("idle work of an agent failed", purpose=self.purpose, error=str(error))


def _result(future: Future[T], timeout: float, what: str) -> T:
    try:
        return future.result(timeout)
    except FutureTimeoutError:
        if future.done():  # just now, or the job itself raised a TimeoutError
            return future.result()
        raise DeadlineExceeded(what, timeout) from None
