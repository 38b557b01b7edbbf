"""Verify the ledger: every record can be read, and is the one that other records name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tidegate.checkpoint.manifests import manifest_flaws
from tidegate.errors import Corrupt, TidegateError
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.ledger.log import is_too_late
from tidegate.lifecycle.savepoint import savepoints
from tidegate.protocol.view import Entry, rollback_of
from tidegate.records.names import entry_id, entry_name
from tidegate.records.records import Blob, Payload, Pin
from tidegate.verify.finding import Finding, Subject

__all__ = ["check_ledger", "is_still_retained"]


def check_ledger(subject: Subject, repair: bool = False) -> tuple[list[Entry], list[Finding]]:
    """Return all entries that can be read, and the findings."""
    try:
        if subject.ledger.identity() is None:
            return [], [Finding(subject.name, "ledger", "ok", "not started yet")]
    except TidegateError as error:
        return [], [Finding(subject.name, "ledger", "bad", error.what, error.help)]
    entries: list[Entry] = []
    problems: list[str] = []
    # Ids of retired entries that a process which was paused has claimed, or written to, since: retention removes that.
    ghosts: set[int] = set()
    settled = _settled(subject.ledger)
    for id in subject.ledger.ids():
        try:
            entry = subject.ledger.entry(id)
        except TidegateError as error:
            problems += [error.what] if is_still_retained(subject.ledger, id) else []
            continue
        if entry is None:
            problem = _without_plan(subject.ledger, id)
            problems += problem
            ghosts |= {id} if not problem else set()
            continue
        entries.append(entry)
        if id < settled and is_too_late(entry):
            ghosts.add(id)
        flaws = list(_entry(subject.ledger, entry))
        problems += flaws if flaws and is_still_retained(subject.ledger, id) else []
    problems += _log(subject.ledger, entries, ghosts)
    notes = list(_forks(subject, repair))
    if not problems:
        fine = Finding(subject.name, "ledger", "ok", f"{len(entries)} checkpoints, all records as written")
        return entries, [fine, *notes]
    advice = "restore the named files from a copy of the storage; never edit or delete records by hand"
    return entries, [*(Finding(subject.name, "ledger", "bad", problem, advice) for problem in problems), *notes]


def _forks(subject: Subject, repair: bool) -> Iterator[Finding]:
    """Report forks and copies that pin a checkpoint because they are unfinished, or were finished from elsewhere."""
    for pin in subject.ledger.pins():
        if pin.kind == "fork" and _has_started(subject, pin):
            detail = f"a fork of checkpoint {pin.entry}, which is spared for it, was finished from a copy"
            if repair:
                subject.ledger.delete_pin(pin.owner)
                yield Finding(subject.name, "forks", "ok", f"let go of: {detail}")
            else:
                yield Finding(subject.name, "forks", "note", detail, "it only takes space; --repair lets go of it")
        elif pin.kind in ("fork", "copy"):
            detail = f"{pin.by} makes a {pin.kind} of checkpoint {pin.entry}, which is spared until that is done"
            advice = "if it was broken off, give the same command again; if nobody wants it, remove the file "
            yield Finding(subject.name, "forks", "note", detail, f"{advice}{subject.ledger.home}/pins/{pin.owner}.json")
        elif pin.kind == "line":
            yield _line(subject, pin)


def _line(subject: Subject, pin: Pin) -> Finding:
    """Report the storage that a backfill occupies, even if it was interrupted."""
    name = pin.owner.removeprefix("line-")
    if subject.ledger.line_discarded(name) is not None:
        over = "its discard was broken off"
    else:
        over = ""
    over = over or ("it was broken off as it began" if subject.ledger.line(name) is None else "")
    detail = f"backfill {name!r} keeps all checkpoints from {pin.entry} on" + (f", though {over}" if over else "")
    discard = f"tidegate backfill MODULE:PIPELINE --discard {name}"
    if over:
        advice = f"to let go of them: {discard}"
    else:
        advice = f"swap it in, or end it: {discard}"
    return Finding(subject.name, "backfills", "note", detail, advice)


def _has_started(subject: Subject, pin: Pin) -> bool:
    """Return whether the pipeline that a pin was made for has started, as far as can be seen from here."""
    name, _, uid = pin.owner.removeprefix("fork-").rpartition("-")
    try:
        identity = open_ledger(subject.settings.root, name, subject.settings.storage_options).identity_or_none()
    except TidegateError:
        return False
    return identity is not None and identity.uid == uid


def is_still_retained(ledger: Ledger, id: int) -> bool:
    """Return whether retention has neither deleted the entry since it was read nor begun to.

    If it has, records and files that the entry lacks are no damage.
    """
    try:
        claimed = ledger.retired(id) and all(pin.entry != id for pin in ledger.pins())
        return ledger.has_plan(id) and not claimed
    except Corrupt:
        return True


def _settled(ledger: Ledger) -> int:
    try:
        return ledger.view().settled
    except TidegateError:
        return 0  # `_log` reports it


def _without_plan(ledger: Ledger, id: int) -> list[str]:
    """Return the problem of a folder without a plan, if it is one.

    The last folder may lack its plan, if its creator stopped in between. So may a folder that is being retired, or that
    a slow process wrote to after it was retired: retention removes it as well. A completed entry would have a manifest.
    """
    floor, records = ledger.retained_count(), ledger.store.names(f"checkpoints/{entry_name(id)}")
    if all(pin.entry != id for pin in ledger.pins()):
        had_completed = any(name.startswith("manifest-") for name in records)
        if floor is not None and (id < floor.low or (id < floor.reached and not had_completed)):
            return []
    if id >= max(ledger.ids(), default=id) and not records:
        return []
    if ledger.retired(id):
        return []
    return [f"checkpoint {id} has a folder but no plan.json"]


def _entry(ledger: Ledger, entry: Entry) -> Iterator[str]:
    """Check the hashes between the records of one entry, and their side files."""
    if entry.manifest is not None:
        for job, handle in entry.manifest.jobs.items():
            if handle.entry != entry.id or entry.rollback is not None:  # the ack of its target, or a copy of a line's
                if not ledger.is_retained(entry.id):
                    continue  # cancelled for good: the target may be gone
                try:
                    ledger.chosen_ack(handle, job)
                except Corrupt as error:
                    yield error.what
                continue
            acked = entry.acks.get(job)
            if acked is None:
                yield f"checkpoint {entry.id} is completed, but the ack of job {job} is missing"
            elif acked.handle != handle:
                yield f"the ack of job {job} in checkpoint {entry.id} is not the one that its manifest names"
        if entry.rollback is None and entry.plan.kind != "fork":
            for flaw in manifest_flaws(entry.manifest, entry):
                yield f"checkpoint {entry.id}: {flaw}"
    if entry.completed and entry_name(entry.id) not in _run_index(ledger, entry):
        yield f"checkpoint {entry.id} is completed, but runs/ does not know that its run made it"
    payloads: list[Payload] = [
        *(part.splits for part in entry.plan.sources.values()),
        *entry.plan.fixed_inputs.values(),
    ]
    payloads += [payload for acked in entry.acks.values() for payload in acked.ack.sinks.values()]
    payloads += [verdict.results for acked in entry.acks.values() for verdict in acked.ack.gates.values()]
    for blob in {payload.blob for payload in payloads if payload.blob is not None}:
        yield from _blob(ledger, blob, entry.id)
    try:
        ledger.published(entry.id)
    except TidegateError as error:
        yield error.what


def _run_index(ledger: Ledger, entry: Entry) -> list[str]:
    return [entry_name(id) for id in ledger.run_ids(entry.plan.run)]


def _blob(ledger: Ledger, blob: Blob, id: int) -> Iterator[str]:
    try:
        ledger.get_blob(blob)
    except Corrupt as error:
        yield f"checkpoint {id}: {error.what}"


def _log(ledger: Ledger, entries: list[Entry], ghosts: set[int]) -> Iterator[str]:
    """Check the log as a whole: no holes, each base below its entry, completed entries only on completed ones."""
    by_id = {entry.id: entry for entry in entries if entry.id not in ghosts}
    try:
        ledger.view()
    except TidegateError as error:
        yield error.what
    ids, pinned, floor = ledger.ids(), {pin.entry for pin in ledger.pins()}, ledger.retained_count()
    rollbacks = ledger.rollbacks()
    for before, after in pairwise(ids):
        # Retention works upwards and records how far it got. Below that, an entry that is pinned, or was until a moment
        # ago, has a hole above it. Where that is not known, only a pinned entry has one, or an entry that could not be
        # deleted yet. A rollback makes retention start again further down: what it had retired by then is among the
        # entries that do not count any more, or below what it had reached.
        passed = floor is not None and after <= max(floor.low, floor.reached)
        passed = passed or before in ghosts
        passed = passed or all(rollback_of(id, rollbacks) is not None for id in (before + 1, after - 1))
        if after != before + 1 and not passed and before not in pinned and not ledger.retired(before):
            yield f"checkpoint {before + 1} is missing between {before} and {after}"
    for entry in entries:
        base = by_id.get(entry.plan.base) if entry.plan.base is not None else None
        if entry.plan.base is not None and entry.plan.base >= entry.id:
            yield f"checkpoint {entry.id} names {entry.plan.base} as its base, which is not below it"
        if base is not None and entry.completed and not base.completed:
            yield f"checkpoint {entry.id} is completed on checkpoint {base.id}, which is not"
    for savepoint in savepoints(ledger):
        if not savepoint.is_retained:
            yield f"savepoint {savepoint.name!r} names checkpoint {savepoint.entry}, which is gone: dispose of it"
    for name in ledger.store.names("checkpoints"):
        if entry_id(name) is None:
            yield f"{ledger.store.url(f'checkpoints/{name}')} is no checkpoint's folder"
