"""A ledger with a long history: the latest checkpoint, a page of the list, one more checkpoint, 50 triggers at once.

Historic checkpoints are retired: their entries are gone, their runs stay in the index. What a run does at its end
is also measured in turn on a small ledger: it must cost the same.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.control import ATTEMPT, PIPELINE, ack_all, checkpoint, coordinator
from tests.bench.harness import Budget, Options, Result, in_turn, timed
from tests.kit.limits import Limits
from tidegate.coordinator import Coordinator
from tidegate.ledger import Ledger, LocalStore
from tidegate.ledger.ledger import stamp
from tidegate.records import records
from tidegate.records.codec import sha256
from tidegate.records.records import (
    Ack,
    Decision,
    Handle,
    JobStats,
    Json,
    LatestHint,
    Manifest,
    Payload,
    Plan,
    Position,
    Published,
    Range,
    TablePart,
)

SINKS = ("orders", "revenue", "totals")
PAGE = 200
"""The longest page that `tidegate list` gives."""


def run(options: Options) -> Result:
    large = history(options, options.size(10_000, 40), options.size(100_000, 60))
    small = history(options, options.size(100, 4), options.size(1_000, 6))
    rounds = 4 * options.pairs
    latest_s = statistics.median(timed(large.read_latest) for _ in range(rounds))
    page_s = large.pages(options.pairs)
    turns = in_turn(large.checkpoint, small.checkpoint, warmups=2, pairs=rounds).wall()
    ids, triggers_s = large.triggers_at_once(options.size(50, 8))
    wrong = large.wrong + small.wrong
    return Result(
        "ledger",
        ours_s=statistics.median(turns.ours),
        pairs=rounds,
        equal=not wrong,
        wrong="; ".join(wrong),
        keys={
            "latest_s": latest_s,
            "page_s": max(page_s.values()),
            "pages": page_s,
            "distinct_ids": len(set(ids)),
            "triggers_s": triggers_s,
            "growth_history": turns.ratio,
            "retained": large.retained,
            "historic": large.historic,
        },
        budgets=(Budget("latest_s", 0.050), Budget("page_s", 0.200)),
    )


def history(options: Options, retained: int, historic: int) -> History:
    """Made once, and found again by later runs, which it has then become longer by."""
    made_by = sha256(Path(__file__).read_bytes() + Path(records.__file__).read_bytes())[:8]
    root = options.cached(f"ledger-{retained}-{made_by}", lambda folder: build(folder, historic, retained))
    return History(root, retained, historic)


class History:
    """A pipeline that has run for long: `historic` checkpoints are retired, `retained` are there."""

    def __init__(self, root: Path, retained: int, historic: int) -> None:
        self.root = root
        self.retained = retained
        self.historic = historic
        self.wrong: list[str] = []
        """What came out otherwise than it must."""
        self.limits = Limits(max_concurrent_checkpoints=1000, num_retained=retained)
        self.control = coordinator(root, SINKS, self.limits)
        self.settle()

    def settle(self) -> None:
        """Bring what an earlier run has triggered to its end."""
        for entry in self.control.ledger.view().still_open():
            ack_all(self.control.ledger, entry.plan, {})
            self.control.complete(entry.id)
        self.control.publish()
        self.control.retire()

    @property
    def last(self) -> int:
        return self.control.ledger.ids()[-1]

    def read_latest(self) -> None:
        found = self.control.ledger.view().last_completed
        self.expect("the latest", found.id if found else None, self.last)

    def pages(self, times: int) -> dict[str, float]:
        """Seconds for the newest page, one in the middle, and the oldest."""
        last, oldest = self.last, self.last - self.retained + 1
        middle = last - self.retained // 2
        between = {
            "newest": (max(oldest, last + 1 - PAGE), last + 1),
            "middle": (max(oldest, middle - PAGE), middle),
            "oldest": (oldest, min(oldest + PAGE, last)),
        }
        return {
            name: statistics.median(timed(self.read_page, first, before) for _ in range(times))
            for name, (first, before) in between.items()
        }

    def read_page(self, first: int, before: int) -> None:
        ids = [entry.id for entry in list_page(self.control.ledger, before)]
        self.expect(f"the page before {before}", ids, list(range(first, before)))

    def checkpoint(self, _: int) -> float:
        """One more, which also retires one."""
        parts = checkpoint(self.control, {})
        self.expect("what is retained", len(self.control.ledger.ids()), self.retained)
        return sum(parts.values())

    def triggers_at_once(self, count: int) -> tuple[list[int], float]:
        """The ids that so many processes get that all trigger a run of their own at the same moment."""
        first = self.last + 1
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.bench.ledger", "deltalake"])
        ready, start, answers = context.Semaphore(0), context.Event(), context.SimpleQueue()
        children = [
            context.Process(target=trigger, args=(self.root, self.limits, f"run-{first}-{n}", ready, start, answers))
            for n in range(count)
        ]
        for child in children:
            child.start()
        for _ in children:
            ready.acquire()
        began = time.perf_counter()
        start.set()
        ids = [answers.get() for _ in children]
        seconds = time.perf_counter() - began
        for child in children:
            child.join()
        self.expect(f"the ids of {count} triggers", sorted(ids), list(range(first, first + count)))
        return ids, seconds

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.wrong.append(f"{what}: {_short(found)}, expected {_short(expected)}")


def list_page(ledger: Ledger, before: int) -> list[Any]:
    """At most PAGE entries below `before`, with all that a list shows of them."""
    ids = ledger.ids(before=before)[-PAGE:]
    return [entry for id in ids if (entry := ledger.entry(id)) and ledger.published(id)]


def trigger(root: Path, limits: Limits, run: str, ready: Any, start: Any, answers: Any) -> None:
    """One process: everything is loaded, then wait for the others, then trigger."""
    control = coordinator(root, SINKS, limits)
    ready.release()
    start.wait()
    try:
        triggered = control.trigger(run)
        answers.put(triggered.plan.id if triggered else -1)
    except BaseException:
        answers.put(-1)
        raise


# -- many checkpoints in a moment ----------------------------------------------------------------------


class UnsyncedStore(LocalStore):
    """Makes files as fast as the disk takes them: builds in seconds what took a real pipeline days."""

    def create(self, path: str, data: bytes) -> bool:
        target = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        with open(target, "xb") as file:
            file.write(data)
        return True


def build(root: Path, historic: int, retained: int) -> None:
    """All records that so many checkpoints leave, of which `historic` are retired."""
    control = coordinator(root, SINKS, Limits())
    ledger = Ledger(UnsyncedStore(control.ledger.store.root), PIPELINE)
    ledger.start()
    end, manifest, prev = None, None, {}
    for id in range(1, historic + retained + 1):
        if id <= historic:
            ledger.index_run(plan_of(id, historic, control, None, None))
            continue
        start, end = end, {"at": id, "seen": msgspec.to_builtins(ledger.put_blob(b"%d" % id))}
        plan = plan_of(id, historic, control, start, end)
        ledger.create_entry(plan)
        ledger.index_run(plan)
        prev = {job: acked(ledger, id, job, prev.get(job)) for job in plan.acks}
        manifest = complete(ledger, plan, prev, manifest)
    ledger.hint(LatestHint(**stamp(ATTEMPT), id=historic + retained))


def plan_of(id: int, historic: int, control: Coordinator, start: Json | None, end: Json | None) -> Plan:
    """As the coordinator plans."""
    ticks = Range(kind="ticks", start=start, end=end, splits=Payload(data={"at": id}), empty=False)
    return Plan(
        **stamp(ATTEMPT),
        id=id,
        kind="scheduled",
        run=f"scheduled__{id}",
        base=id - 1 if id > historic + 1 else None,
        sources={"ticks": ticks},
        triggers=["ticks"],
        acks=list(SINKS),
        commits=list(SINKS),
        timeout_s=control.settings.timeout,
        config=control.settings.record(),
        config_fingerprint="0" * 16,
        code_fingerprint="0" * 16,
    )


def acked(ledger: Ledger, id: int, job: str, prev: Handle | None) -> Handle:
    """As a job without rows acks."""
    ack = Ack(**stamp(ATTEMPT), id=id, job=job, prev=prev, sinks={}, stats=JobStats())
    return Handle(entry=id, sha=ledger.create_ack(ack).sha)


def complete(ledger: Ledger, plan: Plan, jobs: dict[str, Handle], before: str | None) -> str:
    """As the coordinator decides and tells readers. Answers with the manifest's hash."""
    sha = ledger.create_manifest(
        Manifest(
            **stamp(ATTEMPT),
            id=plan.id,
            base=plan.base,
            base_manifest=before,
            positions={name: Position(kind=part.kind, at=part.end) for name, part in plan.sources.items()},
            jobs=jobs,
            tables={name: TablePart(after=None, committables=[]) for name in plan.commits},
        )
    )
    ledger.create_decision(Decision(**stamp(ATTEMPT), id=plan.id, outcome="completed", manifest=sha))
    ledger.create_published(Published(**stamp(ATTEMPT), id=plan.id, tables={}))
    return sha


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:50]} … {text[-40:]}"
