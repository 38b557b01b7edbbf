"""Reads the log of checkpoints: its entries, and the view of its end on which the protocol decides."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from tidegate import seams
from tidegate.errors import Corrupt
from tidegate.ledger.record_files import Created, Records, folder
from tidegate.ledger.store import Store
from tidegate.protocol.view import Acked, Entry, View
from tidegate.records.codec import decode, sha256
from tidegate.records.interval import Interval, moment_key
from tidegate.records.masking import without_logins
from tidegate.records.names import entry_id, entry_name, run_key
from tidegate.records.records import (
    Ack,
    Act,
    Acted,
    Announced,
    Answer,
    Beginning,
    Decision,
    Declined,
    Discarded,
    Diverted,
    Filled,
    Handle,
    HookProgress,
    JobNote,
    LatestHint,
    Manifest,
    Overtaken,
    Pin,
    Plan,
    Published,
    Request,
    RetainedCount,
    Retired,
    Samples,
    SeenTable,
    SeenTables,
    Tried,
    Trouble,
)

__all__ = ["TOO_LATE", "EntryLog", "ManualRecords", "is_too_late"]


AUDIT = "audit"


class ManualRecords(Records):
    """Reads and creates the records of people's actions. Like all records, each is settled by a create."""

    def create_answer(self, answer: Answer) -> Created[Answer]:
        """D5: create the answer. The returned one counts: a person's, or the time limit's."""
        seams.fault("S7.answer.before")
        created = self._create_if_absent(f"{folder(answer.id)}/holds/{answer.gate}.json", answer)
        seams.fault("S7.answer.after")
        return created

    def answer(self, id: int, gate: str) -> Answer | None:
        """Return the answer to the gate's verdict on checkpoint `id`, or None."""
        path = f"{folder(id)}/holds/{gate}.json"
        answer = self._read(path, Answer, id)
        if answer is not None and answer.gate != gate:
            raise self._misplaced(path, f"gate {answer.gate!r}")
        return answer

    def sync_answer(self, answer: Answer) -> None:
        """W2: sync the answer. Call it before a checkpoint is decided by it."""
        self.store.sync(f"{folder(answer.id)}/holds/{answer.gate}.json")

    def age_of_ack(self, id: int, job: str) -> float | None:
        """Return the seconds since the job acked, by the store's clock alone."""
        return self.store.age(f"{folder(id)}/acks/{job}.json")

    def create_request(self, request: Request) -> Created[Request]:
        """Append a request to those that the caller has seen."""
        seams.fault("Q1.request.before")
        created = self._create_if_absent(_request_path(request.gate, request.number), request)
        seams.fault("Q1.request.after")
        return created

    def requests(self, gate: str, after: int = 0) -> list[Request]:
        """Return the requests after number `after`, in order. One that is not visible yet is returned by a later
        call."""
        requests: list[Request] = []
        while (request := self._request(gate, after + len(requests) + 1)) is not None:
            requests.append(request)
        return requests

    def sync_request(self, request: Request) -> None:
        """W2: sync the request. Call it before a plan continues after it."""
        self.store.sync(_request_path(request.gate, request.number))

    def _request(self, gate: str, number: int) -> Request | None:
        path = _request_path(gate, number)
        request = self._read(path, Request)
        if request is not None and (request.gate, request.number) != (gate, number):
            raise self._misplaced(path, f"request {request.number} of gate {request.gate!r}")
        return request

    # -- the audit log of the pages ------------------------------------------------------------------

    def create_act(self, act: Act) -> str:
        """Record the request for an action, before it is performed. Return its key."""
        self._create_if_absent(f"{AUDIT}/{act.key}.json", act)
        return act.key

    def act(self, key: str) -> Act | None:
        """Return the act with this key. The caller must have checked the key: it becomes part of a path."""
        path = f"{AUDIT}/{key}.json"
        act = self._read(path, Act)
        if act is not None and act.key != key:
            raise self._misplaced(path, f"act {act.key}")
        return act

    def create_acted(self, key: str, acted: Acted) -> None:
        """Record the outcome of an act."""
        masked = msgspec.structs.replace(acted, message=without_logins(acted.message))
        self._create_if_absent(f"{AUDIT}/{key}.done.json", masked)

    def acts(self, last: int) -> list[tuple[Act, Acted | None]]:
        """Return the last `last` acts with their outcomes, newest first."""
        names = [name for name in self.store.names(AUDIT) if not name.endswith(".done.json")]
        keys = [name.removesuffix(".json") for name in names[-last:]]
        acts = []
        for key in reversed(keys):
            act = self._read(f"{AUDIT}/{key}.json", Act)
            if act is not None:
                acts.append((act, self._read(f"{AUDIT}/{key}.done.json", Acted)))
        return acts


def _request_path(gate: str, number: int) -> str:
    return f"asked/{gate}/{entry_name(number)}.json"


TOO_LATE = "TOO_LATE"
"""The reason for aborting an entry whose id was used, decided and retired while its creator was paused."""


_MAX_CACHED = 100
"""The number of ended entries to cache."""


class EntryLog(ManualRecords):
    """Reads the log. A listing only proposes, and a record may be outdated when it is used."""

    def __init__(self, store: Store, pipeline: str) -> None:
        super().__init__(store, pipeline)
        self._ended: dict[int, Entry] = {}
        """The entries of the last view that cannot change any more. A checkpoint reads the log a dozen times, and after
        a long series of failures, which no hint can skip, nearly all entries of a view are such."""
        self._cached: dict[int, Entry] = {}
        """Other entries with all their records. They count while the plan exists and is the same."""
        self._day_pins: dict[str, Pin] = {}

    def remember(self, entry: Entry) -> None:
        """Cache an entry whose records were all read or created here, if none will follow. A job may still ack an
        aborted entry, so all acks must exist. The entry counts only while its plan exists."""
        if _has_ended(entry) and len(entry.acks) == len(entry.plan.acks):
            self._cached[entry.id] = entry
            while len(self._cached) > _MAX_CACHED:
                del self._cached[next(iter(self._cached))]

    def view(self, run: str | None = None, reach: int | None = None) -> View:
        """Return the log from its last settled entry on, and all entries that `run` has started.

        reach: an entry that is known to exist, in case the listing does not show it yet.
        """
        settled, entries = self._end_of_log(reach or 0)
        in_view = {entry.id for entry in entries}
        run_ids = self.run_ids(run) if run is not None else []
        outside = tuple(self._find_entry_of_run(id, run, entries) for id in run_ids if id not in in_view)
        return View(entries=entries, settled=settled, own_outside_view=outside)

    def _find_entry_of_run(self, id: int, run: str | None, entries: tuple[Entry, ...]) -> Entry | int:
        """Return an entry of the run that is not in the view; only its id if it is retired.

        Every entry below the view is decided. If one there is open, was aborted as too late, or belongs to another run,
        then a process that was paused has claimed the id of a retired entry (see PipelineContext.counts). Another
        paused process may even have completed such an entry, with a manifest that is deleted.
        """
        is_below = bool(entries) and id < entries[0].id
        try:
            entry = self.entry(id)
        except Corrupt:
            if is_below:
                return id
            raise
        if entry is None or entry.plan.run != run:
            return id
        return id if is_below and is_too_late(entry) else entry

    def entry(self, id: int) -> Entry | None:
        """Return one entry with all its records, or None if it does not exist or was retired.

        Retention removes the plan first. So if the plan still exists after all other records were read, retention has
        removed none of them: an entry that reads as open is open. It must also be the same plan: a process that was
        paused may have claimed the id again, and the records of both would be taken for one entry.
        """
        plan = self.plan(id)
        if plan is None:
            return None
        cached = self._cached.get(id)
        if cached is not None and cached.plan == plan:
            return cached
        try:
            entry = self._entry_of(plan)
        except Corrupt:
            if self.plan(id) is None:
                return None
            raise
        owned = bool(entry.acks) and all(entry.owns(acked.ack.attempt) for acked in entry.acks.values())
        if owned and entry.decision is not None and len(entry.acks) == len(plan.acks):
            self.remember(entry)
            return entry
        plan_now = self.plan(id)
        if plan_now is None or plan_now.attempt != plan.attempt:
            return None
        self.remember(entry)
        return entry

    def ids(self, after: int = 0, before: int | None = None) -> list[int]:
        """Return all entry ids in this range that have a folder, ascending. Like every listing, this only proposes."""
        names = self.store.names("checkpoints", after=entry_name(after) if after > 0 else "")
        if before is not None:
            names = names[: bisect.bisect_left(names, entry_name(before))]
        return _entry_ids(names)

    def run_ids(self, run: str) -> list[int]:
        """Return the ids of the entries that `run` has started, from the index that is never deleted."""
        return _entry_ids(self.store.names(f"runs/{run_key(run)}"))

    def intervals(self) -> list[Interval]:
        """Return all intervals that were completed below the view, from the index that is never deleted.

        Call it after reading the view: an entry is indexed before it drops out of the view.
        """
        return _intervals_of(self.store.names("intervals"))

    def overlapping_intervals(self, interval: Interval) -> list[Interval]:
        """Return all completed intervals that overlap this one, and a few around it.

        Completed intervals are disjoint. So only the last one that begins before this one can overlap its start. The
        search goes two steps back before it lists the whole past, so the cost of a trigger does not grow with the
        number of intervals.
        """
        upto = moment_key(interval.end)
        length = interval.end - interval.start
        for multiple in _SEARCH_STEPS:
            if multiple is not None:
                after = _key_before(interval.start, multiple * length)
            else:
                after = ""
            intervals = _intervals_of(self.store.names("intervals", after=after, before=upto))
            if not after or any(earlier.start < interval.start for earlier in intervals):
                break
        return intervals

    def filled(self, interval: Interval, before: int | None = None) -> Filled | None:
        """Return the last checkpoint (below `before`) in the index for the interval. Call it after reading the
        view."""
        folder = f"intervals/{interval.key}"
        last = max((id for id in self._indexed_ids(folder) if before is None or id < before), default=None)
        if last is None:
            return None
        return self._read(f"{folder}/{entry_name(last)}.json", Filled, last)

    def _indexed_ids(self, folder: str) -> list[int]:
        return _entry_ids([name.removesuffix(".json") for name in self.store.names(folder)])

    def beginning(self, source: str, behind: int) -> Beginning | None:
        """Return where a source begins that no entry up to `behind` has read. The first record after `behind`
        counts."""
        folder = f"beginnings/{source}"
        first = min((id for id in self._indexed_ids(folder) if id > behind), default=None)
        if first is None:
            return None
        path = f"{folder}/{entry_name(first)}.json"
        record = self._read(path, Beginning, first)
        if record is not None and record.source != source:
            raise self._misplaced(path, f"source {record.source!r}")
        return record

    def _hint(self) -> int:
        """Return an entry that is completed and published, with no open entry below it, or 0 if none is known.

        A lost or damaged hint only costs time.
        """
        latest = self._read_hint("latest.json", LatestHint)
        return latest.id if latest is not None else 0

    def settled(self) -> int:
        """Return the entry up to which all are decided and published, as far as recorded, or 0 if unknown."""
        return self._hint()

    def retained_count(self) -> RetainedCount | None:
        """Return retention's last count. None if it is lost or damaged: retention counts again."""
        return self._read_hint("kept.json", RetainedCount)

    def declined(self) -> Declined | None:
        """Return why the code cannot make a checkpoint, if a job has found that. The code may have changed since."""
        return self._read_hint("declined.json", Declined)

    def trouble(self) -> Trouble | None:
        """Return the last error of a run that no checkpoint records. It may be resolved by now."""
        return self._read_hint("trouble.json", Trouble)

    def progress(self, job: str) -> JobNote | None:
        """Return the last noted progress of an attempt at the job, perhaps in an earlier checkpoint."""
        return self._read_hint(f"progress/{job}.json", JobNote)

    def samples(self, id: int, job: str) -> Samples | None:
        """Return the samples of the job's output in the checkpoint, or None."""
        return self._read_hint(f"{folder(id)}/samples/{job}.json", Samples)

    def tried(self) -> frozenset[str]:
        """Return the object stores that were tested before."""
        tried = self._read_hint("tried.json", Tried)
        return frozenset(tried.stores if tried is not None else ())

    def seen_tables(self) -> list[SeenTable]:
        """Return the logs of tables on object stores, as far as the hint has them."""
        seen = self._read_hint("tables.json", SeenTables)
        return seen.tables if seen is not None else []

    def hook_progress(self) -> HookProgress | None:
        """Return which events the hooks were notified of. None if of none, or if the hint is lost."""
        return self._read_hint("told.json", HookProgress)

    def _end_of_log(self, reach: int) -> tuple[int, tuple[Entry, ...]]:
        """Return the hint from which the log could be read, or 0, and the entries from there on."""
        last_error = ""
        while True:
            try:
                settled, entries = self._entries_from(self._hint(), reach)
            except Corrupt as error:
                if str(error) == last_error:
                    raise  # otherwise the log moved on, and retention removed entries while they were read
                last_error = str(error)
            else:
                self._ended = {entry.id: entry for entry in entries if _has_ended(entry)}
                return settled, entries

    def _entries_from(self, hint: int, reach: int) -> tuple[int, tuple[Entry, ...]]:
        ids = self.ids(after=max(hint - 1, 0))
        first = self._ended.get(hint)
        if hint and (first is None or self.plan(hint) != first.plan):  # an old hint may name a retired entry
            first = self.entry(hint)
        if first is not None and first.completed:
            try:
                return hint, (first, *self._entries(hint + 1, self._last(ids or [hint], reach)))
            except Corrupt:
                if not any(self._is_settled(id) for id in reversed(ids) if id > hint):
                    raise  # otherwise the hint is old, its entry is pinned, and retention removed the ones after it
        elif hint and not ids:
            raise self._missing_entry(hint)
        # The hint is lost or damaged, or a slow writer has replaced a newer one with an old one.
        return 0, self._entries_without_hint(reach)

    def _entries_without_hint(self, reach: int) -> tuple[Entry, ...]:
        """Read the log without a hint. Below an entry with published.json all are settled, and may be removed."""
        listed = self.ids()
        settled = next((id for id in reversed(listed) if self._is_settled(id)), None)
        if settled is not None:
            return self._entries(settled, self._last(listed, reach))
        if all(map(self._is_being_removed, listed)) and not reach:
            self._refuse_loss(listed)
            return ()
        return self._entries(1, self._last(listed or [0], reach))

    def _is_settled(self, id: int) -> bool:
        """Return whether the entry exists, and is completed and published on all tables."""
        ended = self._ended.get(id)
        if (ended is not None and ended.aborted) or self.published(id) is None:
            return False
        decision = self.decision(id)
        return decision is not None and decision.outcome == "completed" and not self._is_being_removed(id)

    def _last(self, listed: list[int], reach: int) -> int:
        """Return the highest entry. A listing may miss one that is known to exist."""
        if reach > listed[-1] and self.plan(reach) is not None:
            return reach
        return listed[-1]

    def _refuse_loss(self, listed: list[int]) -> None:
        """Raise Corrupt if the log is empty, but once had entries. (A new log may contain the folder of its first
        entry.)"""
        for id in listed:
            if self.store.names(folder(id)) and self._is_being_removed(id):
                raise self._missing_entry(id)
        if self.store.names("runs") and self.plan(1) is None:  # a run is indexed after its entry
            raise self._missing_entry(1)

    def _entries(self, low: int, high: int) -> tuple[Entry, ...]:
        """Return these entries, with no id missing. Only the last one may have no plan, because it may not exist yet.

        Entries are read from the highest down. Each completes after its base, so if one is read as completed, its base
        is read as completed too: a view never shows n + 1 completed and n open.
        """
        entries = []
        for id in range(high, low - 1, -1):
            entry = self._ended.get(id) or self.entry(id)
            if entry is None and id == high and not self.store.names(folder(id)):
                continue  # its creator has made the folder but not the plan yet, or crashed in between
            entry = entry or self.entry(id)
            if entry is None:
                raise self._missing_entry(id)
            entries.append(entry)
        return tuple(reversed(entries))

    def _is_being_removed(self, id: int) -> bool:
        """Return whether retention is removing the entry or has removed it. Only a tombstone may remain, or files of a
        paused process."""
        return self.retired(id) or self.plan(id) is None

    def ends_with(self, id: int) -> bool:
        """Return whether `id` is the last entry by a listing, and above the hint."""
        hint = self._hint()
        return hint < id == max(self.ids(after=max(hint - 1, 0)), default=0)

    def has_plan(self, id: int) -> bool:
        """Return whether the entry exists: retention removes the plan first."""
        return self.plan(id) is not None

    def plan(self, id: int) -> Plan | None:
        """Return the entry's plan. None if the entry does not exist or is retired."""
        return self._read(f"{folder(id)}/plan.json", Plan, id)

    def _entry_of(self, plan: Plan) -> Entry:
        decision = self.decision(plan.id)
        manifest = None
        if decision is not None and decision.manifest is not None:
            manifest = self.manifest(plan.id, decision.manifest)
        acks = {}
        files = self.store.read_all([_ack_path(plan.id, job) for job in plan.acks])
        for job, data in zip(plan.acks, files, strict=True):
            acked = self._ack_in(data, plan.id, job)
            if acked is not None:
                acks[job] = acked
        answers = {}
        for gate in sorted(_holding_gates(acks)):
            answer = self.answer(plan.id, gate)
            if answer is not None:
                answers[gate] = answer
        overtaken = frozenset(job for job in _overtakable_jobs(plan, acks) if self.overtaken(plan.id, job) is not None)
        return Entry(plan=plan, acks=acks, decision=decision, manifest=manifest, answers=answers, overtaken=overtaken)

    def decision(self, id: int) -> Decision | None:
        """Return the decision about `id`, or None."""
        return self._read(f"{folder(id)}/decision.json", Decision, id)

    def ack(self, id: int, job: str) -> Acked | None:
        """Return the job's ack for `id`, with the hash that names it."""
        return self._ack_in(self.store.read(_ack_path(id, job)), id, job)

    def _ack_in(self, data: bytes | None, id: int, job: str) -> Acked | None:
        path = _ack_path(id, job)
        if data is None:
            return None
        ack = decode(data, Ack, self.store.url(path))
        if (ack.id, ack.job) != (id, job):
            raise self._misplaced(path, f"job {ack.job!r} of checkpoint {ack.id}")
        return Acked(ack=ack, handle=Handle(entry=id, sha=sha256(data)))

    def overtaken(self, id: int, job: str) -> Overtaken | None:
        """Return the record that checkpoint `id` overtook the job, or None."""
        return self._read(f"{folder(id)}/overtaken/{job}.json", Overtaken, id)

    def chosen_ack(self, handle: Handle, job: str) -> Ack:
        """Return the ack that a manifest names, checked against its hash."""
        acked = self.ack(handle.entry, job)
        if acked is None or acked.handle != handle:
            state = "is missing" if acked is None else "was changed"
            raise Corrupt(
                f"the ack of job {job!r} for checkpoint {handle.entry} {state}",
                expected=f"the ack with sha256 {handle.sha}, which a checkpoint rests on",
                help="restore it from a copy of the storage, or roll back to another checkpoint",
                reason="LEDGER_DAMAGED",
            )
        return acked.ack

    def manifest(self, id: int, sha: str) -> Manifest:
        """Return the manifest that a decision names, checked against the hash in its name."""
        path = f"{folder(id)}/manifest-{sha}.json"
        data = self.store.read(path)
        if data is None or sha256(data) != sha:
            if data is None:
                state = "is missing"
            else:
                state = "is not what was written (its hash differs)"
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

    def diverts_applied(self, view: View) -> dict[int, bool]:
        """Return whether each divert of the view applied, if that is settled. Read this after the tables."""
        applied = {}
        for entry in view.entries:
            if entry.plan.divert is None or not entry.completed:
                continue
            settled = self.divert_applied(entry.id)
            if settled is not None:
                self.store.sync(f"{folder(entry.id)}/diverted.json")  # W2: it outlives what is published next
                applied[entry.id] = settled
        return applied

    def divert_applied(self, id: int) -> bool | None:
        """Return whether the divert of checkpoint `id` applied, or None if that is not settled."""
        settled = self._read(f"{folder(id)}/diverted.json", Diverted, id)
        return settled.applied if settled is not None else None

    def published(self, id: int) -> Published | None:
        """Return the state of the tables after `id`, for readers."""
        return self._read(f"{folder(id)}/published.json", Published, id)

    def announced(self, id: int) -> Announced | None:
        """Return who tells other DAGs of `id`, or None if nobody has claimed it."""
        return self._read(f"{folder(id)}/announced.json", Announced, id)

    def retired(self, id: int) -> bool:
        """Return whether retention has claimed the entry."""
        return self._read(f"{folder(id)}/retired.json", Retired, id) is not None

    def is_retained(self, id: int) -> bool:
        """Return whether the entry exists and retention has not claimed it. (The plan is deleted first, the tombstone
        last.)"""
        if self.retired(id) or not self.has_plan(id):
            return False
        discarded = self.discarded()
        return discarded is None or discarded.id != id

    def discarded(self) -> Discarded | None:
        """Return the tombstone of the last checkpoint, whose records stay in the log while the files that they name are
        removed."""
        return self._read("discarded.json", Discarded)

    def pins(self) -> list[Pin]:
        """Return all pins. Listings of this folder and of runs/ are assumed not to lag.

        Each pin of a day is read only once, because its name determines its entry.
        """
        names = self.store.names("pins")
        unread = [f"pins/{name}" for name in names if name not in self._day_pins]
        files = dict(zip(unread, self.store.read_all(unread), strict=True))
        pins: dict[str, Pin] = {}
        for name in names:
            path = f"pins/{name}"
            pin = self._day_pins.get(name) or self._record_in(files[path], path, Pin)
            if pin is not None:
                pins[name] = pin
        self._day_pins = {name: pin for name, pin in pins.items() if pin.kind == "day"}
        return list(pins.values())

    def rollbacks(self, pins: Sequence[Pin] | None = None) -> list[tuple[int, int]]:
        """Return all completed rollbacks that are retained, as (entry, target). pins: all pins, if already read."""
        if pins is None:
            pins = self.pins()
        ids = {pin.rollback for pin in pins if pin.rollback is not None}
        rollbacks = []
        for id in sorted(ids):
            plan, decision = self.plan(id), self.decision(id)
            if plan is None or plan.rollback is None or decision is None or decision.manifest is None:
                continue
            rollbacks.append((id, plan.rollback.target))
        return rollbacks

    def _missing_entry(self, id: int) -> Corrupt:
        return Corrupt(
            f"{self.store.url(folder(id))}/plan.json is missing, but the log refers to checkpoint {id}",
            expected="every entry from the last settled one on",
            help="restore the folder from a copy of the storage; never delete entries by hand",
            reason="LEDGER_DAMAGED",
        )


_SEARCH_STEPS: tuple[int | None, ...] = (1, 32, None)
"""How far before an interval to search for its predecessor, in multiples of its length; None is the beginning."""


def _entry_ids(names: Sequence[str]) -> list[int]:
    ids = map(entry_id, names)
    return [id for id in ids if id is not None]


def _intervals_of(names: Sequence[str]) -> list[Interval]:
    intervals = map(Interval.of_key, names)
    return [interval for interval in intervals if interval is not None]


def is_too_late(entry: Entry) -> bool:
    """Return whether an entry below the view reuses the id of a retired one, because its creator was paused too long.

    All genuine entries below the view are decided, and none of them was too late.
    """
    return entry.decision is None or entry.decision.reason == TOO_LATE


def _ack_path(id: int, job: str) -> str:
    return f"{folder(id)}/acks/{job}.json"


def _key_before(moment: datetime, span: timedelta) -> str:
    try:
        return moment_key(moment - span)
    except OverflowError:
        return ""


def _holding_gates(acks: Mapping[str, Acked]) -> set[str]:
    gates = set()
    for acked in acks.values():
        for gate, verdict in acked.ack.gates.items():
            if verdict.outcome == "hold":
                gates.add(gate)
    return gates


def _overtakable_jobs(plan: Plan, acks: Mapping[str, Acked]) -> list[str]:
    if plan.overtaking is None:
        return []
    return [job for job in plan.overtaking.jobs if job not in acks]


def _has_ended(entry: Entry) -> bool:
    """Return whether no more records of the entry will follow.

    An entry aborted as TOO_LATE will be removed, because its id belonged to an earlier one.
    """
    if entry.decision is None or entry.decision.reason == TOO_LATE:
        return False
    return entry.aborted or len(entry.acks) == len(entry.plan.acks)
