"""What a trainer announces about its memory is wrong: readers say so, stay alive, and go on with a good trainer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.fleet import Fleet
from support.impostor import Impostor
from support.rest import Rest
from support.server import ServerProcess
from support.workers import ChildError, WorkerProcess

_RANDOM = random.Random(7)
_steps = itertools.count(1)
CLEAR = {"metadata_corrupt", "source_unreachable", "source_overwritten", "source_stalled"}
"""What a reader may find. Overwritten: the address is readable and no header of this version is there."""


@pytest.fixture
def lease_seconds() -> float:
    return 60.0


class Scene:
    """An impostor and an honest trainer that publish together, and a reader."""

    def __init__(self, fleet: Fleet, rest: Rest) -> None:
        self.fleet = fleet
        self.honest = fleet.trainer(rank=1, world_size=2)
        donor = fleet.spare().start("trainer", fleet.url, model="donor", run="run-2")
        self.reader: WorkerProcess = fleet.rollout(stall_seconds=1).ready()
        self.honest.ready()
        donor.call("publish", step=1, seed=1)
        self.impostor = Impostor(rest, fleet.model, self.honest, donor)
        self.serving: int | None = None

    def check(self, **lie: Any) -> str:
        """With nobody but the impostor the reader fails clearly; with the honest one beside, it gets the weights."""
        self.impostor.lie(**lie)
        alone = self._publish()
        assert self.honest.call("wait_drained", version=alone)
        with pytest.raises(ChildError) as told:
            self.reader.call("refit", timeout=30)
        assert (told.value.error, told.value.code in CLEAR) == ("TransferError", True), told.value.message
        assert "policy:trainer:0" in told.value.message
        assert f"version {alone}" in told.value.message
        state = self.reader.call("state")
        assert (state["serving"], state["tainted"]) == (self.serving, False)

        both = self._publish()
        assert self.fleet.refit(self.reader, both)["sources"] == ["policy:trainer:1"]
        self.serving = both
        return told.value.code

    def _publish(self) -> int:
        step = next(_steps)
        version, digest = self.impostor.publish(step, step)
        self.fleet.published[version] = digest
        return version


@pytest.fixture
def scene(fleet: Fleet, server: ServerProcess) -> Iterator[Scene]:
    rest = Rest(server.url)
    yield Scene(fleet, rest)
    rest.close()


def test_bytes_that_are_no_metadata(scene: Scene) -> None:
    for metadata in (_RANDOM.randbytes(600), b"\0" * 600, b"nixlSerDes|", scene.impostor.renamed()[1][:200]):
        assert scene.check(metadata=metadata) == "source_unreachable"
    assert scene.check(metadata=b"") == "metadata_corrupt"


def test_metadata_that_does_not_have_its_digest_never_reaches_nixl(scene: Scene) -> None:
    """Some flipped bits would be accepted by NIXL, and some would crash it."""
    for digest in ("0" * 64, scene.impostor.agent["metadata_digest"][::-1]):
        assert scene.check(agent={"metadata_digest": digest}) == "metadata_corrupt"
    assert scene.check(agent={"metadata": "A"}) == "metadata_corrupt"


def test_metadata_of_another_agent(scene: Scene) -> None:
    _name, metadata = scene.impostor.renamed()
    assert scene.check(metadata=metadata) == "metadata_corrupt"
    assert scene.check(agent={"name": "wc-serve-nobody"}) == "metadata_corrupt"


def test_bits_flipped_before_the_digest_was_made(scene: Scene) -> None:
    """Left out: the worker address and the kind of memory, where UCX and NIXL 1.5.1 crash on a few of the values."""
    size = len(scene.impostor.renamed()[1])
    positions = [*range(0, 96, 5), *range(330, 424, 6), *range(428, size, 7)]
    found = set()
    for position in positions:
        name, metadata = scene.impostor.renamed()
        flipped = bytearray(metadata)
        flipped[position] ^= 1 << (position % 8)
        found.add(scene.check(metadata=bytes(flipped), agent={"name": name}))
    assert {"metadata_corrupt", "source_unreachable"} <= found


@pytest.mark.parametrize("field", ["header_address", "table_address", "data_address"])
def test_addresses_outside_of_what_was_registered(scene: Scene, field: str) -> None:
    for address in (1, 4096, 2**47, 2**63, 2**64 - 1):
        name, metadata = scene.impostor.renamed()
        code = scene.check(metadata=metadata, agent={"name": name}, slot={field: str(address)})
        assert code in {"metadata_corrupt", "source_unreachable"}


def test_sizes_that_do_not_fit_the_shard(scene: Scene) -> None:
    for size in (0, 1, 2**53 - 1):
        assert scene.check(slot={"table_nbytes": size}) == "metadata_corrupt"
