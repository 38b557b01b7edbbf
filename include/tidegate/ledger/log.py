"""The log of checkpoints as a reader sees it: entries, and the view of its end that the protocol decides on."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from tidegate.errors import Corrupt
from tidegate.ledger.operator_records import OperatorRecords
from tidegate.ledger.records import folder
from tidegate.ledger.store import Store
from tidegate.protocol.view import Acked, Entry, View
from tidegate.records.codec import decode, sha256
from tidegate.records.interval import Interval, moment_key
from tidegate.records.names import entry_id, entry_name, run_key
from tidegate.records.records import (
    Ack,
    Beginning,
    Decision,
    Discarded,
    Filled,
    Handle,
    Kept,
    LatestHint,
    Manifest,
    Overtaken,
    Pin,
    Plan,
    Published,
    Retired,
    Told,
    Tried,
    Trouble,
)

__all__ = ["TOO_LATE", "EntryLog"]

TOO_LATE = "TOO_LATE"
"""Why an entry is aborted whose id had been used, decided and retired while its creator slept."""


class EntryLog(OperatorRecords):
    """Reads the log, and never writes to it. A listing only proposes, and what is read may be old when it is used."""

    def __init__(self, store: Store, pipeline: str) -> None:
        super().__init__(store, pipeline)
        self._ended: dict[int, Entry] = {}
        """Those of the last view about which nothing changes any more. A checkpoint looks at the log a dozen times, and
        behind a long row of failures, which no hint can leave out, they are nearly all that there is to read."""

    def view(self, run: str | None = None, reach: int | None = None) -> View:
        """The log from its last settled entry on, and all that `run` has started. One consistent proposal.

        reach: an entry that is known to exist, should the listing not show it yet.
        """
        settled, entries = self._end_of_log(reach or 0)
        seen = {entry.id for entry in entries}
        own = () if run is None else (self._own(id, run, entries) for id in self.run_ids(run) if id not in seen)
        return View(entries=entries, settled=settled, own_elsewhere=tuple(own))

    def _own(self, id: int, run: str, entries: tuple[Entry, ...]) -> Entry | int:
        """An entry of the run that the view does not reach; just its id if it is retired.

        Below the view all is decided. What is open there, or was aborted as too late, or is of another run, was
        claimed under the id of a retired entry by somebody who slept (see Coordinator.counts). Such a one may even
        be completed, by somebody else who slept, with a manifest that is gone.
        """
        below = bool(entries) and id < entries[0].id
        try:
            entry = self.entry(id)
        except Corrupt:
            if below:
                return id
            raise
        if entry is None or entry.plan.run != run:
            return id
        return id if below and (entry.decision is None or entry.decision.reason == TOO_LATE) else entry

    def entry(self, id: int) -> Entry | None:
        """One entry with all its records, or None if it does not exist or was retired.

        Retention removes the plan first. So if that is still there when all else has been read, nothing was
        missing because retention was faster: what is read as open is open. It must be the same plan, too: somebody who
        slept may have claimed the id anew, and then what was read of both would be taken for one entry.
        """
        plan = self.plan(id)
        if plan is None:
            return None
        try:
            entry = self._filled(plan)
        except Corrupt:
            if self.plan(id) is None:
                return None
            raise
        own = bool(entry.acks) and all(entry.owns(acked.ack.attempt) for acked in entry.acks.values())
        if own and entry.decision is not None and len(entry.acks) == len(plan.acks):
            return entry
        again = self.plan(id)
        return entry if again is not None and again.attempt == plan.attempt else None

    def ids(self, after: int = 0, before: int | None = None) -> list[int]:
        """All entry ids between these that have a folder, ascending: a proposal, like every listing."""
        names = self.store.names("checkpoints", after=entry_name(after) if after > 0 else "")
        if before is not None:
            names = names[: bisect.bisect_left(names, entry_name(before))]
        return [id for name in names if (id := entry_id(name)) is not None]

    def run_ids(self, run: str) -> list[int]:
        """The entries that `run` has started, by the index that is never deleted."""
        names = self.store.names(f"runs/{run_key(run)}")
        return [id for name in names if (id := entry_id(name)) is not None]

    def intervals(self) -> list[Interval]:
        """All intervals that were completed below the view, by the index that is never deleted.

        To be read behind a view: what leaves the view is in the index by then.
        """
        return [found for name in self.store.names("intervals") if (found := Interval.of_key(name)) is not None]

    def intervals_at(self, interval: Interval) -> list[Interval]:
        """Of these intervals all that have time in common with this one, and a few around it.

        They are disjoint. So only the last that begins before this one can reach into it, and that is looked for in
        two steps back before the whole past is listed: what a trigger pays does not grow with the number of intervals.
        """
        upto = moment_key(interval.end)
        for far in _FAR:
            after = _key_before(interval.start, far * (interval.end - interval.start)) if far is not None else ""
            names = self.store.names("intervals", after=after, before=upto)
            found = [each for name in names if (each := Interval.of_key(name)) is not None]
            if not after or any(each.start < interval.start for each in found):
                break
        return found

    def filled(self, interval: Interval, before: int | None = None) -> Filled | None:
        """The last checkpoint (below `before`) that the index has for the interval. Read behind a view, likewise."""
        folder = f"intervals/{interval.key}"
        ids = [id for name in self.store.names(folder) if (id := entry_id(name.removesuffix(".json"))) is not None]
        last = max((id for id in ids if before is None or id < before), default=None)
        return None if last is None else self._read(f"{folder}/{entry_name(last)}.json", Filled, last)

    def beginning(self, source: str, behind: int) -> Beginning | None:
        """Where a source begins that no entry up to `behind` has read: the first to say so, behind that, counts."""
        folder = f"beginnings/{source}"
        ids = [id for name in self.store.names(folder) if (id := entry_id(name.removesuffix(".json"))) is not None]
        first = min((id for id in ids if id > behind), default=None)
        if first is None:
            return None
        path = f"{folder}/{entry_name(first)}.json"
        found = self._read(path, Beginning, first)
        if found is not None and found.source != source:
            raise self._misplaced(path, f"source {found.source!r}")
        return found

    def _hint(self) -> int:
        """An entry that is completed and published, with nothing open below it; 0: begin at the beginning.

        A lost or damaged hint only costs time.
        """
        latest = self._read_hint("latest.json", LatestHint)
        return latest.id if latest is not None else 0

    def settled(self) -> int:
        """The entry up to which all is decided and published, as far as it was noted; 0: nothing is known."""
        return self._hint()

    def kept(self) -> Kept | None:
        """What retention has counted before. Lost or damaged: count again."""
        return self._read_hint("kept.json", Kept)

    def trouble(self) -> Trouble | None:
        """The last error that a run has met and no checkpoint tells of. It may be over long since."""
        return self._read_hint("trouble.json", Trouble)

    def tried(self) -> frozenset[str]:
        """The object stores that were tried out before this."""
        found = self._read_hint("tried.json", Tried)
        return frozenset(found.stores if found is not None else ())

    def told(self) -> int:
        """The last entry by which somebody suspended the pipeline and its hooks were told; 0: none, or nobody knows."""
        told = self._read_hint("told.json", Told)
        return told.id if told is not None else 0

    def _end_of_log(self, reach: int) -> tuple[int, tuple[Entry, ...]]:
        """The hint that was good enough to begin at, or 0, and the entries from there on."""
        doubt = ""
        while True:
            try:
                settled, entries = self._entries_from(self._hint(), reach)
            except Corrupt as error:
                if str(error) == doubt:
                    raise  # otherwise others went on meanwhile, and retention took what was being read
                doubt = str(error)
            else:
                self._ended = {entry.id: entry for entry in entries if _has_ended(entry)}
                return settled, entries

    def _entries_from(self, hint: int, reach: int) -> tuple[int, tuple[Entry, ...]]:
        ids = self.ids(after=max(hint - 1, 0))
        first = self._ended.get(hint)
        if hint and (first is None or self.plan(hint) != first.plan):  # an old hint, and retention took what it names
            first = self.entry(hint)
        if first is not None and first.completed:
            try:
                return hint, (first, *self._entries(hint + 1, self._last(ids or [hint], reach)))
            except Corrupt:
                if not any(self._noted(id) for id in reversed(ids) if id > hint):
                    raise  # otherwise the hint is old, what it names is pinned, and retention took what lies behind it
        elif hint and not ids:
            raise self._hole(hint)
        # The hint is lost, or damaged, or somebody slow has written an old one over a newer one.
        return 0, self._entries_left(reach)

    def _entries_left(self, reach: int) -> tuple[Entry, ...]:
        """The log without a hint. Below an entry whose publish was noted all is settled, and may be gone."""
        listed = self.ids()
        settled = next((id for id in reversed(listed) if self._noted(id)), None)
        if settled is not None:
            return self._entries(settled, self._last(listed, reach))
        if all(map(self._going, listed)) and not reach:
            self._refuse_loss(listed)
            return ()
        return self._entries(1, self._last(listed or [0], reach))

    def _noted(self, id: int) -> bool:
        """Whether the entry is there, completed, and published on all tables."""
        ended = self._ended.get(id)
        if ended is not None and ended.aborted:
            return False
        decision = self.decision(id)
        return (
            decision is not None
            and decision.outcome == "completed"
            and self.published(id) is not None
            and not self._going(id)
        )

    def _last(self, listed: list[int], reach: int) -> int:
        """The highest entry: a listing may lag behind what is known to exist."""
        return reach if reach > listed[-1] and self.plan(reach) is not None else listed[-1]

    def _refuse_loss(self, listed: list[int]) -> None:
        """No entry is left. That is right only if there never was one: of the first there may be a folder."""
        for id in listed:
            if self.store.names(folder(id)) and self._going(id):
                raise self._hole(id)
        if self.store.names("runs") and self.plan(1) is None:  # a run is indexed behind its entry
            raise self._hole(1)

    def _entries(self, low: int, high: int) -> tuple[Entry, ...]:
        """These entries without a hole: a missing record is never 'nothing yet', but for the very last plan.

        Read from the highest down. Each completes after its base did, so whoever is seen completed here has a
        base that is seen completed too: a view never shows n + 1 done and n not.
        """
        found = []
        for id in range(high, low - 1, -1):
            entry = self._ended.get(id) or self.entry(id)
            if entry is None and id == high and not self.store.names(folder(id)):
                continue  # its creator is between making the folder and making the plan, or stopped there
            entry = entry or self.entry(id)
            if entry is None:
                raise self._hole(id)
            found.append(entry)
        return tuple(reversed(found))

    def _going(self, id: int) -> bool:
        """Whether retention is at this entry, or was: its tombstone is left, or what a zombie wrote behind it."""
        return self.retired(id) or self.plan(id) is None

    def has_plan(self, id: int) -> bool:
        """Whether the entry exists: retention removes the plan first."""
        return self.plan(id) is not None

    def plan(self, id: int) -> Plan | None:
        """What the entry is about; None: there is no such entry, or it is retired."""
        return self._read(f"{folder(id)}/plan.json", Plan, id)

    def _filled(self, plan: Plan) -> Entry:
        decision = self.decision(plan.id)
        manifest = None
        if decision is not None and decision.manifest is not None:
            manifest = self.manifest(plan.id, decision.manifest)
        acks = {job: acked for job in plan.acks if (acked := self.ack(plan.id, job)) is not None}
        held = {gate for acked in acks.values() for gate, said in acked.ack.gates.items() if said.outcome == "hold"}
        answers = {gate: found for gate in sorted(held) if (found := self.answer(plan.id, gate)) is not None}
        over = frozenset(job for job in _may_be_overtaken(plan, acks) if self.overtaken(plan.id, job) is not None)
        return Entry(plan=plan, acks=acks, decision=decision, manifest=manifest, answers=answers, overtaken=over)

    def decision(self, id: int) -> Decision | None:
        """What was decided about `id`, if anything."""
        return self._read(f"{folder(id)}/decision.json", Decision, id)

    def ack(self, id: int, job: str) -> Acked | None:
        """The job's ack for `id`, with the hash that names it."""
        path = f"{folder(id)}/acks/{job}.json"
        data = self.store.read(path)
        if data is None:
            return None
        ack = decode(data, Ack, self.store.url(path))
        if (ack.id, ack.job) != (id, job):
            raise self._misplaced(path, f"job {ack.job!r} of checkpoint {ack.id}")
        return Acked(ack=ack, handle=Handle(entry=id, sha=sha256(data)))

    def overtaken(self, id: int, job: str) -> Overtaken | None:
        """Whether checkpoint `id` went past the job."""
        return self._read(f"{folder(id)}/overtaken/{job}.json", Overtaken, id)

    def chosen_ack(self, handle: Handle, job: str) -> Ack:
        """The ack that a manifest names, checked against its hash."""
        found = self.ack(handle.entry, job)
        if found is None or found.handle != handle:
            raise Corrupt(
                f"the ack of job {job!r} for checkpoint {handle.entry} "
                + ("is gone" if found is None else "was changed"),
                expected=f"the ack with sha256 {handle.sha}, which a checkpoint rests on",
                help="restore it from a copy of the storage, or roll back to another checkpoint",
                reason="LEDGER_DAMAGED",
            )
        return found.ack

    def manifest(self, id: int, sha: str) -> Manifest:
        """The manifest that a decision names, checked against the hash in its name."""
        path = f"{folder(id)}/manifest-{sha}.json"
        data = self.store.read(path)
        if data is None or sha256(data) != sha:
            state = "is missing" if data is None else "is not what was written (its hash differs)"
            raise Corrupt(
                f"{self.store.url(path)} {state}, but checkpoint {id} is completed by it",
                expected=f"a manifest with sha256 {sha}",
                help="restore the file from a copy of the storage; nothing has been changed",
                reason="BAD_MANIFEST",
            )
        manifest = decode(data, Manifest, self.store.url(path))
        if manifest.id != id:
            raise self._misplaced(path, f"checkpoint {manifest.id}")
        return manifest

    def published(self, id: int) -> Published | None:
        """Where the tables stood after `id`: for readers."""
        return self._read(f"{folder(id)}/published.json", Published, id)

    def retired(self, id: int) -> bool:
        """Whether retention has claimed the entry."""
        return self._read(f"{folder(id)}/retired.json", Retired, id) is not None

    def is_kept(self, id: int) -> bool:
        """Whether retention has not claimed the entry. Its plan is deleted first, its tombstone last."""
        if self.retired(id) or not self.has_plan(id):
            return False
        discarded = self.discarded()
        return discarded is None or discarded.id != id

    def discarded(self) -> Discarded | None:
        """The tombstone of a last checkpoint: the log needs its records, but what they name is removed."""
        return self._read("discarded.json", Discarded)

    def pins(self) -> list[Pin]:
        """All that retention must spare. A listing of this folder is taken to be seen at once, as that of runs/ is."""
        names = self.store.names("pins")
        found = (self._read(f"pins/{name}", Pin) for name in names)
        return [pin for pin in found if pin is not None]

    def rollbacks(self, pins: Sequence[Pin] | None = None) -> list[tuple[int, int]]:
        """All completed rollbacks that are retained, and where each went back to. pins: all, if they are read."""
        found = self.pins() if pins is None else pins
        ids = sorted({pin.restart for pin in found if pin.restart is not None})
        plans = ((id, self.plan(id), self.decision(id)) for id in ids)
        return [
            (id, plan.restart.target)
            for id, plan, decision in plans
            if plan is not None and plan.restart is not None and decision is not None and decision.manifest is not None
        ]

    def _hole(self, id: int) -> Corrupt:
        return Corrupt(
            f"{self.store.url(folder(id))}/plan.json is missing, but the log refers to checkpoint {id}",
            expected="every entry from the last settled one on",
            help="restore the folder from a copy of the storage; never delete entries by hand",
            reason="LEDGER_DAMAGED",
        )


_FAR: tuple[int | None, ...] = (1, 32, None)
"""How many times its own length before an interval the one before it is looked for; None: from the beginning."""


def _key_before(moment: datetime, span: timedelta) -> str:
    try:
        return moment_key(moment - span)
    except OverflowError:
        return ""


def _may_be_overtaken(plan: Plan, acks: Mapping[str, Acked]) -> list[str]:
    return [job for job in plan.overtaking.jobs if job not in acks] if plan.overtaking is not None else []


def _has_ended(entry: Entry) -> bool:
    """Whether all is written that ever will be. An abort that came too late will be removed: its id was another's."""
    if entry.decision is None or entry.decision.reason == TOO_LATE:
        return False
    return entry.aborted or len(entry.acks) == len(entry.plan.acks)
