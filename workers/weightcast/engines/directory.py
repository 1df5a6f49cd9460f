"""How ranks that were only given each other's metadata find the newest version: a page of registered memory.

A policy rank writes what it holds (where, which layout, which digests, with which agent metadata) into its directory;
rollout ranks READ it whenever they want to know. No message, no port, no server.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from weightcast.contract.names import PullFailure
from weightcast.engines.agent import AgentThread, DisconnectedError, NixlAgent, NixlHandle
from weightcast.engines.header import HEADER_NBYTES, HeaderInvalidError, SlotHeader
from weightcast.errors import TransferError
from weightcast.memory import HostBuffer

DIRECTORY_NBYTES: Final = 4 * 2**20
"""Room for the layout of about 100,000 tensors, compressed."""

STALL_SECONDS: Final = 5.0
_TIMEOUT: Final = 60.0
_DIGEST_NBYTES: Final = 32
_MOST_IN_FLIGHT: Final = 16


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest version that a rank holds."""

    version: int
    layout: bytes
    layout_digest: str
    digest_root: str
    nbytes: int
    bucket_nbytes: int
    generation: int
    agent: str
    metadata: bytes
    header_address: int
    table_address: int
    table_nbytes: int
    data_address: int


_decoder = msgspec.msgpack.Decoder(Entry)


class DirectoryWriter:
    """A policy rank's directory and the agent that serves it."""

    def __init__(self) -> None:
        self._buffer = HostBuffer(DIRECTORY_NBYTES, "the directory page")
        self._thread = AgentThread("serve")
        self._registration = self._thread.call(
            lambda agent: agent.register(self._buffer), _TIMEOUT, "register the directory"
        )
        self._header = SlotHeader(0, 0, 0, 0, 0, 0, 0)
        self._set(self._header)

    def metadata(self) -> dict[str, str]:
        """What peers are given: plain strings that survive JSON."""
        info = self._thread.info()
        return {
            "agent_name": info.name,
            "agent_metadata": info.metadata,
            "agent_metadata_digest": info.metadata_digest,
            "directory_address": str(self._buffer.address),
        }

    def write(self, entry: Entry) -> None:
        """Replace the entry; a reader in the middle of the old one notices.

        Raises:
            TransferError: it does not fit.
        """
        raw = msgspec.msgpack.encode(entry)
        blob = hashlib.sha256(raw).digest() + raw
        if len(blob) > DIRECTORY_NBYTES - HEADER_NBYTES:
            raise TransferError(f"the layout takes {len(raw)} bytes, over the {DIRECTORY_NBYTES} of the directory")
        generation = self._header.generation
        self._set(self._header.writing())
        self._buffer.view[HEADER_NBYTES : HEADER_NBYTES + len(blob)] = blob
        self._header = SlotHeader(0, entry.version, 0, generation + 2, 0, 0, len(blob))
        self._set(self._header)

    def close(self) -> None:
        """Stop serving."""
        if not self._thread.close():
            _abandoned.append(self._buffer)

    def _set(self, header: SlotHeader) -> None:
        self._buffer.view[:HEADER_NBYTES] = header.pack()


class DirectoryReader:
    """Reads one peer's directory. :meth:`read` and :meth:`close` run on the owner thread of the reading agent.

    What is prepared belongs to one agent object: after that agent was rebuilt, everything is prepared anew.

    Memory: one page, and for each replaced peer that stopped in the middle of a READ one more until that READ ends.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        try:
            self.peer = str(metadata["agent_name"])
            self._metadata = base64.b64decode(str(metadata["agent_metadata"]), validate=True)
            digest = str(metadata["agent_metadata_digest"])
            self._address = int(metadata["directory_address"])
        except (KeyError, ValueError, binascii.Error) as error:
            raise TransferError(
                f"the peer's metadata cannot be used: {error!r}", reason=PullFailure.METADATA_CORRUPT
            ) from None
        if hashlib.sha256(self._metadata).hexdigest() != digest:
            raise TransferError(
                "the peer's metadata does not have its digest", reason=PullFailure.METADATA_CORRUPT, peer=self.peer
            )
        if not 0 < self._address <= 2**64 - 1 - DIRECTORY_NBYTES:
            raise TransferError("the peer's directory address is absurd", reason=PullFailure.METADATA_CORRUPT)
        self._page: _Page | None = None
        self._closed = False

    def same_as(self, other: DirectoryReader) -> bool:
        """Whether both were made from the same metadata."""
        return (self.peer, self._metadata, self._address) == (other.peer, other._metadata, other._address)

    def read(self, agent: NixlAgent, newer_than: int) -> Entry | None:
        """The peer's entry, or None when it is not newer, or being replaced right now."""
        page = self._prepared(agent)
        header = self._read_header(agent, page)
        if header is None or header.version <= newer_than:
            return None
        if not _DIGEST_NBYTES < header.data_nbytes <= DIRECTORY_NBYTES - HEADER_NBYTES:
            raise TransferError("the peer's directory has an impossible size", peer=self.peer)
        local, remote = page.buffer.address + HEADER_NBYTES, self._address + HEADER_NBYTES
        page.read(agent, agent.prepare_read(local, remote, header.data_nbytes, self.peer))
        blob = bytes(page.buffer.view[HEADER_NBYTES : HEADER_NBYTES + header.data_nbytes])
        if self._read_header(agent, page) != header:
            return None
        if hashlib.sha256(blob[_DIGEST_NBYTES:]).digest() != blob[:_DIGEST_NBYTES]:
            raise TransferError(
                "the peer's directory has a wrong digest", reason=PullFailure.DIGEST_MISMATCH, peer=self.peer
            )
        entry = _decoder.decode(blob[_DIGEST_NBYTES:])
        # An earlier READ that ended late may have put an older entry, itself intact, over this one.
        return entry if entry.version == header.version else None

    def close(self, agent: NixlAgent) -> None:
        """Give everything back; what a READ in flight may still write to stays until that READ has ended."""
        self._closed = True
        page, self._page = self._page, None
        if page is not None:
            page.replaced = True
        _free_replaced(agent)

    def _prepared(self, agent: NixlAgent) -> _Page:
        if self._closed:
            raise TransferError("its directory is no longer read", reason=PullFailure.CANCELLED, peer=self.peer)
        _free_replaced(agent)
        if self._page is None or self._page.agent() is not agent:
            self._page = _Page(agent, self.peer, self._metadata, self._address)
        return self._page

    def _read_header(self, agent: NixlAgent, page: _Page) -> SlotHeader | None:
        page.read(agent, page.prepare(agent))
        try:
            header = SlotHeader.unpack(page.buffer.view[:HEADER_NBYTES])
        except HeaderInvalidError:
            return None
        return header if header.valid else None


class _Page:
    """A registered copy of one peer's directory on one agent, the READs into it, and the peer as that agent knows it.

    A READ in flight cannot be cancelled. Until it is done or the peer has disconnected, neither its handle, nor the
    peer, nor this memory may go. The page itself may be read on: what lands late is checked like everything else.
    """

    def __init__(self, agent: NixlAgent, peer: str, metadata: bytes, address: int) -> None:
        self.agent = weakref.ref(agent)
        self.buffer = HostBuffer(DIRECTORY_NBYTES, "a copy of a directory page")
        self.replaced = False
        self.peer, self._metadata, self._address = peer, metadata, address
        self.loaded = self._disconnected = False
        self._header: NixlHandle | None = None
        self._in_flight: list[NixlHandle] = []
        self._registration = agent.register(self.buffer)
        _pages.setdefault(agent, []).append(self)

    def prepare(self, agent: NixlAgent) -> NixlHandle:
        """The READ of the peer's header, with the peer loaded (again, after it had disconnected).

        Raises:
            TransferError: the peer cannot be loaded, or too many READs from it have not ended.
        """
        self._sweep(agent)
        if len(self._in_flight) >= _MOST_IN_FLIGHT:
            raise TransferError(
                f"{len(self._in_flight)} READs of its directory have not ended",
                reason=PullFailure.SOURCE_STALLED,
                peer=self.peer,
            )
        if self._disconnected and not self._in_flight:
            self._unload(agent)
        if not self.loaded:
            agent.add_peer(self.peer, self._metadata)
            self.loaded = True
        if self._header is None:
            self._header = agent.prepare_read(self.buffer.address, self._address, HEADER_NBYTES, self.peer)
        return self._header

    def read(self, agent: NixlAgent, handle: NixlHandle) -> None:
        """Post a READ and wait for it. The header's handle is kept; one that does not end is kept until it has."""
        try:
            self._finish(agent, handle)
        except DisconnectedError:
            self._disconnected = True
            self._drop(agent, handle)
            raise
        except TransferError:
            self._in_flight.append(handle)
            if handle is self._header:
                self._header = None
            raise
        if handle is not self._header:
            agent.release(handle)

    def _finish(self, agent: NixlAgent, handle: NixlHandle) -> None:
        if agent.post(handle):
            return
        ends = time.monotonic() + STALL_SECONDS
        while not agent.poll(handle):
            if time.monotonic() > ends:
                raise TransferError(
                    f"its directory did not answer within {STALL_SECONDS:g} s",
                    reason=PullFailure.SOURCE_STALLED,
                    peer=self.peer,
                )
            time.sleep(100e-6)

    def free(self, agent: NixlAgent) -> None:
        """Release, forget and deregister everything, unless a READ is in flight; then this is to be called again."""
        self._sweep(agent)
        if self._in_flight:
            return
        self._unload(agent)
        with contextlib.suppress(TransferError):  # then it stays registered, and referenced, until the agent is gone
            agent.deregister(self._registration)
            _pages[agent].remove(self)

    def _sweep(self, agent: NixlAgent) -> None:
        for handle in list(self._in_flight):
            try:
                ended = agent.poll(handle)
            except DisconnectedError:
                ended = self._disconnected = True
            except TransferError:
                ended = False  # an error that is no disconnect says nothing about bytes on their way
            if ended:
                self._in_flight.remove(handle)
                self._drop(agent, handle)

    def _unload(self, agent: NixlAgent) -> None:
        if self._header is not None:
            self._drop(agent, self._header)
        shared = any(page is not self and page.loaded and page.peer == self.peer for page in _pages[agent])
        if self.loaded and not shared:
            with contextlib.suppress(TransferError):  # a peer that broke off is gone already
                agent.remove_peer(self.peer)
        self.loaded = self._disconnected = False

    def _drop(self, agent: NixlAgent, handle: NixlHandle) -> None:
        if handle is self._header:
            self._header = None
        with contextlib.suppress(TransferError):
            agent.release(handle)


def _free_replaced(agent: NixlAgent) -> None:
    for page in [page for page in _pages.get(agent, []) if page.replaced]:
        page.free(agent)


_pages: weakref.WeakKeyDictionary[NixlAgent, list[_Page]] = weakref.WeakKeyDictionary()
"""A READ may be in flight for as long as its agent exists, also where that is left behind stuck inside NIXL: a page
lives until it is deregistered or the agent object is gone."""

_abandoned: list[HostBuffer] = []
"""Directories whose agent could not be destroyed."""
