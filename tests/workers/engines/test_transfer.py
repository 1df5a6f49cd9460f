"""READs between real agents: right bytes, or an error that says what was wrong."""

from __future__ import annotations

import base64
import hashlib
import threading

import pytest
from support.weights import make_weights, sha256
from weightcast.contract.names import PullFailure
from weightcast.engines.fetch import Fetch
from weightcast.errors import LayoutMismatch, TransferError
from workers.engines.conftest import BUCKET, EPOCH, Pair, staged_tensors


def test_versions_arrive_bit_for_bit_through_handles_prepared_once(pair: Pair) -> None:
    for version in range(1, 8):
        staged = pair.fetch(version, pair.shard(pair.write(version, seed=version)))
        assert sha256(staged_tensors(staged)) == sha256(pair.weights)
        assert (staged.version, staged.sources, staged.nbytes) == (
            version,
            ["policy:trainer:0"],
            pair.source.layout.nbytes,
        )
    peers = pair.reader._workspace.peers
    assert len(peers) == 1
    assert len(peers._peers["policy:trainer:0"].prepared) == 2  # one set of handles a slot, re-posted at every version


def test_a_slot_that_holds_something_else_is_noticed(pair: Pair) -> None:
    old = pair.write(10, seed=1)
    assigned = pair.shard(old)
    pair.write(12, seed=2)  # the same slot
    with pytest.raises(TransferError, match="overwritten") as caught:
        pair.fetch(10, assigned)
    assert (caught.value.reason, caught.value.peer, caught.value.version) == (
        PullFailure.SOURCE_OVERWRITTEN,
        "policy:trainer:0",
        10,
    )
    for changes in ({"epoch": EPOCH + 1}, {"slot_generation": 2}):
        with pytest.raises(TransferError, match="overwritten"):
            pair.fetch(12, pair.shard(pair.write(12, seed=2), **changes))
    with pytest.raises(TransferError, match="overwritten"):
        pair.fetch(14, pair.shard(pair.write(12, seed=2)))


def test_a_write_during_the_read_is_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assigned = pair.shard(pair.write(20, seed=1))
    original, armed = Fetch._arrived, threading.Event()

    def arrived(self: Fetch, *arguments: object) -> None:
        if not armed.is_set():
            armed.set()
            pair.write(22, seed=2)
        original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Fetch, "_arrived", arrived)
    with pytest.raises(TransferError) as caught:
        pair.fetch(20, assigned)
    assert caught.value.reason is PullFailure.SOURCE_OVERWRITTEN
    assert armed.is_set()
    monkeypatch.undo()
    assert sha256(staged_tensors(pair.fetch(22, pair.shard(pair.write(22, seed=3))))) == sha256(pair.weights)


@pytest.mark.parametrize("position", [0, BUCKET, -1])
def test_a_flipped_bit_is_found_and_its_bucket_named(pair: Pair, position: int) -> None:
    written = pair.write(30, seed=1)
    pair.source._slots[written.slot].bytes[position] ^= 0x10
    with pytest.raises(TransferError) as caught:
        pair.fetch(30, pair.shard(written))
    nbytes = pair.source.layout.nbytes
    assert caught.value.reason is PullFailure.DIGEST_MISMATCH
    assert caught.value.bucket == (position % nbytes) // BUCKET


def test_a_table_that_fits_wrong_bytes_does_not_help_them(pair: Pair) -> None:
    first = pair.write(32, seed=1)
    root = first.digest_root
    second = pair.write(34, seed=2)  # consistent in itself, but not what was published as 32
    shard = pair.shard(second).model_copy(update={"digest_root": root})
    with pytest.raises(TransferError, match="digest table") as caught:
        pair.fetch(34, shard)
    assert caught.value.reason is PullFailure.DIGEST_MISMATCH


def test_metadata_is_checked_before_nixl_sees_it(pair: Pair) -> None:
    shard = pair.shard(pair.write(40, seed=1))
    agent = shard.sources[0].agent
    raw = base64.b64decode(agent.metadata)
    flipped = bytes([raw[0] ^ 1]) + raw[1:]
    broken = {
        "flipped": agent.model_copy(update={"metadata": base64.b64encode(flipped).decode(), "name": "other"}),
        "empty": agent.model_copy(update={"metadata": "", "name": "other"}),
        "not base64": agent.model_copy(update={"metadata": "abc", "name": "other"}),
        "random with its digest": agent.model_copy(
            update={
                "name": "other",
                "metadata": base64.b64encode(b"\x00" * 500).decode(),
                "metadata_digest": hashlib.sha256(b"\x00" * 500).hexdigest(),
            }
        ),
        "of another agent": agent.model_copy(update={"name": "other"}),
    }
    for what, changed in broken.items():
        with pytest.raises(TransferError) as caught:
            pair.fetch(40, pair.shard(pair.write(40, seed=1), agent=changed))
        assert caught.value.reason in {PullFailure.METADATA_CORRUPT, PullFailure.SOURCE_UNREACHABLE}, what
        assert caught.value.peer == "policy:trainer:0"
    assert sha256(staged_tensors(pair.fetch(40, pair.shard(pair.write(40, seed=4))))) == sha256(pair.weights)


def test_absurd_addresses_never_reach_nixl(pair: Pair) -> None:
    good = pair.shard(pair.write(50, seed=1)).sources[0].memory
    for changes in (
        {"data_address": str(2**64 - 16)},
        {"header_address": "0"},
        {"table_address": "99999999999999999999"},
        {"data_nbytes": good.data_nbytes - 1},
        {"table_nbytes": good.table_nbytes + 16},
    ):
        with pytest.raises(TransferError) as caught:
            pair.fetch(50, pair.shard(pair.write(50, seed=1), memory=good.model_copy(update=changes)))
        assert caught.value.reason is PullFailure.METADATA_CORRUPT


def test_a_withdrawn_slot_cannot_be_read_and_a_restamped_one_can(pair: Pair) -> None:
    written = pair.write(60, seed=1)
    pair.source.invalidate(written.slot)
    with pytest.raises(TransferError, match="overwritten"):
        pair.fetch(60, pair.shard(written))
    written = pair.write(62, seed=1)
    generation = pair.source.restamp(written.slot, EPOCH + 1)
    with pytest.raises(TransferError, match="overwritten"):
        pair.fetch(62, pair.shard(written))
    staged = pair.fetch(62, pair.shard(written, epoch=EPOCH + 1, slot_generation=generation))
    assert sha256(staged_tensors(staged)) == sha256(pair.weights)


def test_weights_that_are_no_longer_those_of_the_layout_are_refused_and_the_slot_stays(pair: Pair) -> None:
    written = pair.write(70, seed=1)
    weights = make_weights(2)
    weights["scalar"] = weights["scalar"].double()
    weights["tied.two"] = weights["tied.one"].clone()
    weights["extra"] = weights.pop("empty")
    with pytest.raises(LayoutMismatch) as caught:
        pair.source.write(70 % 2, 72, EPOCH, weights)
    assert len(caught.value.differences) == 4
    assert sha256(staged_tensors(pair.fetch(70, pair.shard(written)))) == sha256(pair.weights)
