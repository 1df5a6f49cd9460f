"""What a trainer's slots offer to readers, and keeping the control plane's knowledge of it true."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from weightcast.client import ControlPlane, Identity
from weightcast.contract.names import MAX_WAIT_SECONDS
from weightcast.contract.problems import Code
from weightcast.contract.versions import PublishShard, Version
from weightcast.engines.source import ResidentSource, WrittenSlot
from weightcast.errors import NotFound, VersionConflict
from weightcast.logs import get_logger
from weightcast.session import WorkerSession

_log = get_logger("weightcast.offers")


@dataclass(frozen=True, slots=True)
class Offer:
    """A version in a slot, the epoch that its header shows, and whether the server has answered for it."""

    version: int
    written: WrittenSlot
    body: PublishShard
    epoch: int
    confirmed: bool


class Offers:
    """The slots of one trainer rank. Not thread-safe: the trainer's lock guards it."""

    def __init__(
        self, source: ResidentSource, session: WorkerSession, control: ControlPlane, model: str, slot: int, shard: int
    ) -> None:
        self._source, self._session, self._control = source, session, control
        self._model, self._rank, self._shard = model, slot, shard
        self._offers: dict[int, Offer] = {}

    def of(self, version: int) -> Offer | None:
        """This rank's offer of a version, if any."""
        return next((offer for offer in self._offers.values() if offer.version == version), None)

    def slot_for(self, failed: AbstractSet[int]) -> int:
        """The slot to write next: one that offers nothing (or a version in ``failed``), else the oldest version's.

        A good version is given up only for a newer one that needs its place, never because others have failed.
        """

        def age(slot: int) -> int:
            offer = self._offers.get(slot)
            return 0 if offer is None or offer.version in failed else offer.version

        return min(range(self._source.slots), key=age)

    def withdraw(self, slot: int, timeout: float) -> bool:
        """Stop offering a slot, up to ``timeout`` (at most 60 s) after its readers. False when some were cut off."""
        offer = self._offers.get(slot)
        drained = True
        if offer is not None:
            wait = min(timeout, MAX_WAIT_SECONDS)
            try:
                answer = self._session.call(lambda me: self._control.drain(me, self._model, offer.version, wait=wait))
            except NotFound:
                pass  # the server has forgotten the version: nobody is sent here for it
            else:
                drained = answer.drained
                if not drained:
                    _log.warning("readers cut off", version=offer.version, readers=answer.readers, waited_seconds=wait)
            del self._offers[slot]
        self._source.invalidate(slot)
        return drained

    def withdraw_version(self, version: int, timeout: float) -> bool:
        """Stop offering a version, if this rank does."""
        for slot, offer in self._offers.items():
            if offer.version == version:
                return self.withdraw(slot, timeout)
        return True

    def publish(self, version: int, written: WrittenSlot, epoch: int) -> Version:
        """Offer a slot that was just written."""
        body = PublishShard(
            shard=self._shard,
            layout_digest=self._source.layout_digest,
            digest_root=written.digest_root,
            nbytes=written.nbytes,
            memory_slot=written.slot,
            slot_generation=written.generation,
        )
        # Noted before it is sent: the server may act on it although its answer is lost.
        self._offers[written.slot] = Offer(version, written, body, epoch, confirmed=False)
        return self.send(written.slot)

    def send(self, slot: int) -> Version:
        """Tell the server of an offer, also again. Its header changes once per epoch: readers may be on their way."""

        def put(me: Identity) -> Version:
            offer = self._offers[slot]
            if me.epoch != offer.epoch:
                body = offer.body.model_copy(update={"slot_generation": self._source.restamp(slot, me.epoch)})
                offer = self._offers[slot] = replace(offer, body=body, epoch=me.epoch)
            answer = self._put(me, offer)
            self._offers[slot] = replace(offer, confirmed=True)
            return answer

        return self._session.call(put)

    def announce(self) -> None:
        """After the server forgot this worker: offer what the slots still hold under the new epoch."""
        for slot, offer in list(self._offers.items()):
            try:
                self.send(slot)
            except (NotFound, VersionConflict) as error:
                _log.info("version not offered again", version=offer.version, code=error.code)
                del self._offers[slot]

    def _put(self, me: Identity, offer: Offer) -> Version:
        try:
            return self._control.publish_shard(me, self._model, offer.version, self._rank, offer.body)
        except NotFound as error:
            if error.code != Code.UNKNOWN_LAYOUT:
                raise
            self._control.put_layout(me, self._model, self._source.layout)
            return self._control.publish_shard(me, self._model, offer.version, self._rank, offer.body)
