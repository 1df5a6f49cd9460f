"""How ranks that were only given each other's metadata find the newest version: a page of registered memory.

A policy rank writes what it holds (where, which layout, which digests, with which agent metadata) into its directory;
rollout ranks READ it whenever they want to know. No message, no port, no server.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from weightcast.contract.names import PullFailure
from weightcast.engines.agent import AgentThread, NixlAgent, NixlHandle
from weightcast.engines.header import HEADER_NBYTES, HeaderInvalidError, SlotHeader
from weightcast.errors import TransferError
from weightcast.memory import HostBuffer

DIRECTORY_NBYTES: Final = 4 * 2**20
"""Room for the layout of about 100,000 tensors, compressed."""

STALL_SECONDS: Final = 5.0
_TIMEOUT: Final = 60.0
_DIGEST_NBYTES: Final = 32


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
    """Reads one peer's directory. All methods run on the owner thread of the reading agent."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        try:
            self._peer = str(metadata["agent_name"])
            self._metadata = base64.b64decode(str(metadata["agent_metadata"]), validate=True)
            digest = str(metadata["agent_metadata_digest"])
            self._address = int(metadata["directory_address"])
        except (KeyError, ValueError, binascii.Error) as error:
            raise TransferError(
                f"the peer's metadata cannot be used: {error!r}", reason=PullFailure.METADATA_CORRUPT
            ) from None
        if hashlib.sha256(self._metadata).hexdigest() != digest:
            raise TransferError(
                "the peer's metadata does not have its digest", reason=PullFailure.METADATA_CORRUPT, peer=self._peer
            )
        if not 0 < self._address <= 2**64 - 1 - DIRECTORY_NBYTES:
            raise TransferError("the peer's directory address is absurd", reason=PullFailure.METADATA_CORRUPT)
        self._buffer: HostBuffer | None = None
        self._header: NixlHandle | None = None
        self._stuck: list[tuple[HostBuffer | None, NixlHandle]] = []

    def read(self, agent: NixlAgent, newer_than: int) -> Entry | None:
        """The peer's entry, or None when it is not newer, or being replaced right now."""
        if self._buffer is None:
            agent.add_peer(self._peer, self._metadata)
            self._buffer = HostBuffer(DIRECTORY_NBYTES, "a copy of a directory page")
            agent.register(self._buffer)
            self._header = agent.prepare_read(self._buffer.address, self._address, HEADER_NBYTES, self._peer)
        header = self._read_header(agent)
        if header is None or header.version <= newer_than:
            return None
        if not _DIGEST_NBYTES < header.data_nbytes <= DIRECTORY_NBYTES - HEADER_NBYTES:
            raise TransferError("the peer's directory has an impossible size", peer=self._peer)
        body = agent.prepare_read(
            self._buffer.address + HEADER_NBYTES, self._address + HEADER_NBYTES, header.data_nbytes, self._peer
        )
        self._finish(agent, body)
        agent.release(body)
        blob = bytes(self._buffer.view[HEADER_NBYTES : HEADER_NBYTES + header.data_nbytes])
        if self._read_header(agent) != header:
            return None
        if hashlib.sha256(blob[_DIGEST_NBYTES:]).digest() != blob[:_DIGEST_NBYTES]:
            raise TransferError(
                "the peer's directory has a wrong digest", reason=PullFailure.DIGEST_MISMATCH, peer=self._peer
            )
        return _decoder.decode(blob[_DIGEST_NBYTES:])

    def _read_header(self, agent: NixlAgent) -> SlotHeader | None:
        assert self._buffer is not None  # noqa: S101 - set by read()
        assert self._header is not None  # noqa: S101
        self._finish(agent, self._header)
        try:
            header = SlotHeader.unpack(self._buffer.view[:HEADER_NBYTES])
        except HeaderInvalidError:
            return None
        return header if header.valid else None

    def _finish(self, agent: NixlAgent, handle: NixlHandle) -> None:
        """Post a READ and wait for it. One that does not end keeps its memory for as long as this object lives."""
        if agent.post(handle):
            return
        ends = time.monotonic() + STALL_SECONDS
        while not agent.poll(handle):
            if time.monotonic() > ends:
                self._stuck.append((self._buffer, handle))
                self._buffer = self._header = None
                raise TransferError(
                    f"its directory did not answer within {STALL_SECONDS:g} s",
                    reason=PullFailure.SOURCE_STALLED,
                    peer=self._peer,
                )
            time.sleep(100e-6)


_abandoned: list[HostBuffer] = []
"""Directories whose agent could not be destroyed."""
