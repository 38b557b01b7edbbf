"""Everything that can be done to a pipeline: each act is one command or one deed, tried where it makes sense."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.views.shops import CANARY, SCHEMA, Said, Shops, day, random_point
from tidegate import Pipeline, offline
from tidegate.cli.targets import open_target
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle.savepoint import savepoints
from tidegate.spark.session import session, spark_settings

__all__ = ["ACTS", "Doer"]


@dataclass
class Doer:
    """Does what the dice say, and tells it."""

    shops: Shops
    dice: random.Random
    mend: Callable[[], object] | None = None
    """What puts right again what the last act has damaged; done before the next act, after all have looked."""
    pause: Callable[[], object] | None = None
    """Pauses the DAG in Airflow, or lets it continue."""
    damaged: bool = False
    """Whether that is a record of the pipeline."""

    def act(self, name: str, *, may_die: bool) -> tuple[str, list[Said]]:
        """One act: its story, and what its commands said."""
        if self.mend is not None:
            self.mend()
        self.mend, self.damaged = None, False
        said, story = [], list[str]()
        for step in ACTS[name](self):
            dies, where = random_point(self.dice) if may_die and self.dice.random() < 0.35 else (None, [])
            told = self.shops.run(step, dies_at=dies) if isinstance(step, str) else self.shops.do(*step)
            said.append(told)
            story.append(f"{told.line}{f' (dies at {where[0]})' if where else ''} -> {told.code}")
        return f"{name}: {'; '.join(story) or 'done'}", said

    # -- what is there

    def completed(self) -> list[int]:
        """Checkpoints that can be gone back to."""
        ledger = self.ledger
        found = ((id, ledger.entry(id)) for id in ledger.ids())
        return [id for id, entry in found if entry is not None and entry.completed and ledger.is_retained(id)]

    @property
    def ledger(self) -> Ledger:
        return open_target("orders", {}, started=False).ledger

    def savepoints(self) -> list[str]:
        return [each.name for each in savepoints(self.ledger)]

    def held(self) -> int | None:
        for entry in self.ledger.view().still_open():
            if entry.acks and any(verdict.hold for ack in entry.acks.values() for verdict in ack.ack.gates.values()):
                return entry.id
        return None


Deed = tuple[str, Callable[[], object]]
"""What people do in Python, and what it is called."""
Act = Callable[[Doer], Iterator[str | Deed]]
RUN = "run shop:orders --until-idle"
CONSTRAINT = "not_twice"


def passes(do: Doer) -> Iterator[str]:
    """A run whose rows are all good."""
    do.shops.feed(1, 2, 3)
    yield RUN


def watches_for_input(do: Doer) -> Iterator[str]:
    """By event: a run that makes a checkpoint whenever there is input, until somebody who sees it wait ends it."""
    do.shops.write_code(by_event=True)
    do.shops.feed(9, 10)
    yield "run shop:orders --forever"


def goes_by_the_clock(do: Doer) -> Iterator[str]:
    do.shops.write_code(by_event=False)
    yield RUN


def sets_aside(do: Doer) -> Iterator[str]:
    do.shops.feed(4, -5, 6)
    yield RUN


def fails_a_gate(do: Doer) -> Iterator[str]:
    """So many rows are bad that it is aborted; then they are gone, and others came."""
    do.shops.feed(-1, -2, -3, -4, 5)
    yield RUN
    newest = max((do.shops.folder / "landing" / "events").iterdir())
    newest.unlink()
    do.shops.feed(7)


def a_record_is_malformed(do: Doer) -> Iterator[str]:
    """The job fails, and tells of what; then somebody takes the file away."""
    path = do.shops.folder / "landing" / "events" / "999999.json"
    path.write_text(f'{{"id": 1, "k": "{CANARY}", "v": 1, "note": "{CANARY}\n')
    do.mend = lambda: path.unlink(missing_ok=True)
    yield RUN


def is_held(do: Doer) -> Iterator[str]:
    do.shops.feed(1001, 8)
    yield "run shop:orders --checkpoints 1"


def approves(do: Doer) -> Iterator[str]:
    if (id := do.held()) is not None:
        yield f"approve orders {id}"
        yield RUN


def rejects(do: Doer) -> Iterator[str]:
    if (id := do.held()) is not None:
        yield f"reject orders {id}"
        yield "resume orders"


def quarantines_what_is_held(do: Doer) -> Iterator[str]:
    """The next run reads it again, and is not held."""
    if (id := do.held()) is not None:
        yield f"reject orders {id} --quarantine"
        yield RUN


def releases(do: Doer) -> Iterator[str]:
    yield "quarantine release orders checked --all --yes --note kept"
    yield RUN


def corrects(do: Doer) -> Iterator[str]:
    yield "quarantine release orders checked --all --set v=9 --yes"
    yield RUN


def corrects_by_sql(do: Doer) -> Iterator[str]:
    yield "quarantine release orders checked --all --set 'v = abs(v)' --yes"
    yield RUN


def judges_again(do: Doer) -> Iterator[str]:
    yield "quarantine rejudge orders checked --yes"
    yield RUN


def discards_rows(do: Doer) -> Iterator[str]:
    yield "quarantine discard orders checked --all --yes"
    yield RUN


def diverts(do: Doer) -> Iterator[str | Deed]:
    """Somebody gives the table a constraint between a decision and its publication. A row that it refuses is
    diverted, and later the constraint is dropped."""
    path = do.shops.folder / "tables" / "sales"

    def refuse(point: str) -> None:
        if point == "S9.decision.after" and (path / "_delta_log").is_dir() and not constraints(path):
            DeltaTable(str(path)).alter.add_constraint({CONSTRAINT: "v <> 77"})
            do.mend = lambda: drop_constraint(path)

    do.shops.feed(76, 77)
    yield "the table refuses a row", lambda: do.shops.run(RUN, dies_at=refuse)
    yield "divert shop:orders sales --where 'v = 77' --dry-run"
    yield "divert shop:orders sales --where 'v = 77' --note twice --yes"


def constraints(path: Path) -> list[str]:
    """The names of a table's constraints."""
    settings = DeltaTable(str(path)).metadata().configuration
    return [name for name in settings if name.startswith("delta.constraints.")]


def drop_constraint(path: Path) -> None:
    if (path / "_delta_log").is_dir() and constraints(path):
        DeltaTable(str(path)).alter.drop_constraint(CONSTRAINT)


def releases_what_was_diverted(do: Doer) -> Iterator[str]:
    yield "quarantine release orders sales-refused --all --yes"
    yield RUN


def goes_back(do: Doer) -> Iterator[str]:
    if ids := do.completed():
        yield f"rollback shop:orders --to {do.dice.choice(ids)} --yes"


def goes_back_and_stops(do: Doer) -> Iterator[str]:
    if ids := do.completed():
        yield f"rollback shop:orders --to {do.dice.choice(ids)} --suspend --yes"


def names(do: Doer) -> Iterator[str]:
    yield f"savepoint create orders s{do.dice.randrange(1000)}"


def forgets(do: Doer) -> Iterator[str]:
    if named := do.savepoints():
        yield f"savepoint dispose orders {do.dice.choice(named)} --yes"


def forks(do: Doer) -> Iterator[str]:
    if ids := do.completed():
        yield f"fork orders --from {do.dice.choice(ids)} --as shop:trial"
        yield "run shop:trial --until-idle"


def backfills(do: Doer) -> Iterator[str]:
    if ids := do.completed():
        cuts = do.dice.choice(["", " --cuts recorded", " --larger 3"])
        yield f"backfill shop:orders --from {do.dice.choice(ids)}{cuts} --name fix --yes"


def backfills_everything(do: Doer) -> Iterator[str]:
    yield "backfill shop:orders --from beginning --name fix --yes"


def proposes(do: Doer) -> Iterator[str]:
    """Somebody has other code on a branch, and looks what it would do."""
    version = do.shops.code.get("version", 0)
    do.shops.write_code(version=version + 1)
    yield "propose shop:orders --over 2 --examples 3"
    do.shops.write_code(version=version)


def proposes_and_keeps(do: Doer) -> Iterator[str]:
    """And after the next checkpoint it is accepted, with the code that was proposed."""
    yield "propose shop:orders --over 2 --keep"
    do.shops.feed(3)
    yield RUN
    yield "propose accept shop:orders --yes"


def asks_why(do: Doer) -> Iterator[str]:
    yield f"why shop:orders totals \"k = '{CANARY}-1'\" --over 3 --replays 3"


def swaps(do: Doer) -> Iterator[str]:
    yield "backfill shop:orders --name fix --swap --yes"


def swaps_back(do: Doer) -> Iterator[str]:
    yield "rollback shop:orders --to before-fix --yes"


def discards_the_backfill(do: Doer) -> Iterator[str]:
    yield "backfill shop:orders --discard fix --yes"


def moves_a_source(do: Doer) -> Iterator[str]:
    before = do.shops.source
    do.shops.write_code(moved=not do.shops.code.get("moved"))
    yield f"source move shop:orders {before} {do.shops.source}"
    do.shops.feed(11)
    yield RUN


def drops_a_source(do: Doer) -> Iterator[str]:
    if not do.shops.code.get("dropped"):
        do.shops.write_code(dropped=True)
        yield "source drop shop:orders more --yes"
        yield RUN


def reads_the_other_source(do: Doer) -> Iterator[str]:
    do.shops.feed(12, -13, source="more")
    yield RUN


def changes_the_code(do: Doer) -> Iterator[str]:
    do.shops.write_code(version=do.shops.code.get("version", 0) + 1)
    do.shops.feed(14)
    yield "check shop:orders --no-spark"
    yield RUN


def stops(do: Doer) -> Iterator[str]:
    yield "stop orders --yes --no-wait"


def drains(do: Doer) -> Iterator[str]:
    yield "stop shop:orders --drain --yes --no-wait"
    yield "run shop:orders --checkpoints 1"


def cancels(do: Doer) -> Iterator[str]:
    yield "cancel orders --yes --reason enough"


def suspends(do: Doer) -> Iterator[str]:
    yield "suspend orders --reason lunch"


def resumes(do: Doer) -> Iterator[str]:
    yield "resume orders"


def resumes_after_the_end(do: Doer) -> Iterator[str]:
    yield "resume orders --after-end"


def recovers(do: Doer) -> Iterator[str]:
    yield "recover shop:orders --yes"


def drops_a_table_by_hand(do: Doer) -> Iterator[str]:
    """And does what the cause says: without that, nothing continues."""
    shutil.rmtree(do.shops.folder / "tables" / do.dice.choice(["sales", "totals"]), ignore_errors=True)
    do.shops.feed(15)
    yield RUN


def leaves_a_table(do: Doer) -> Iterator[str]:
    if ids := do.completed():
        sink = do.dice.choice(["sales", "totals"])
        yield f"rollback shop:orders --to {do.dice.choice(ids)} --leave {sink} --yes"


def loses_a_record(do: Doer) -> Iterator[str]:
    """A record of the newest checkpoint is cut off; then it is put back."""
    if found := sorted((do.shops.folder / "ledger" / "orders").rglob("plan.json")):
        record, kept = found[-1], found[-1].read_bytes()
        record.write_bytes(kept[: len(kept) // 2])
        do.mend, do.damaged = lambda: record.write_bytes(kept), True
        yield RUN


def edits_a_state(do: Doer) -> Iterator[Deed]:
    """By hand: each total gets a hundred more."""

    def edit(pipeline: Pipeline, spark: Any) -> None:
        offline.edit_state(pipeline, spark, "totals", lambda rows: rows.withColumn("total", rows.total + 100))

    yield "edit the state of totals", lambda: by_hand(edit)


def bootstraps_a_state(do: Doer) -> Iterator[Deed | str]:
    """As if there had been rows before."""

    def bootstrap(pipeline: Pipeline, spark: Any) -> None:
        offline.bootstrap(pipeline, spark, "totals", spark.createDataFrame(do.shops.rows(21.0, 22.0), schema=SCHEMA))

    yield "bootstrap the state of totals", lambda: by_hand(bootstrap)
    do.shops.feed(23)
    yield RUN


def by_hand(deed: Callable[[Pipeline, Any], None]) -> None:
    """With the pipeline's code and a session, as in a notebook."""
    target = open_target("shop:orders", {}, started=False)
    assert target.pipeline is not None
    with session(spark_settings(target.settings)) as spark:
        deed(target.pipeline, spark)


def makes_a_day(do: Doer) -> Iterator[str]:
    """Of the pipeline of intervals; if it is made already, nothing happens."""
    number = do.dice.randrange(1, 4)
    do.shops.feed(31, 32, source=f"days/2026-03-{number:02d}")
    yield f"run shop:daily --interval {day(number)}"


def makes_a_day_again(do: Doer) -> Iterator[str]:
    number = do.dice.randrange(1, 4)
    do.shops.feed(33, source=f"days/2026-03-{number:02d}")
    yield f"run shop:daily --interval {day(number)} --reprocess"


def a_day_is_malformed(do: Doer) -> Iterator[str]:
    folder = do.shops.folder / "landing" / "days" / "2026-03-01"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "999999.json"
    path.write_text(f'{{"id": 1, "k": "{CANARY}", "v": 1, "note": "{CANARY}\n')
    do.mend = lambda: path.unlink(missing_ok=True)
    yield f"run shop:daily --interval {day(1)} --reprocess"


def others_rewrite_the_days(do: Doer) -> Iterator[str | Deed]:
    """Which rows are an interval's cannot be told from the files any more: making it again waits."""
    table = do.shops.folder / "daily" / "rows"
    if (table / "_delta_log").is_dir():
        yield "compact daily/rows", lambda: DeltaTable(str(table)).optimize.compact()
        yield from makes_a_day_again(do)


def disowns(do: Doer) -> Iterator[str]:
    if "daily" in do.shops.pipelines:
        how, number = do.dice.choice(["--take-out", "--leave"]), do.dice.randrange(1, 4)
        yield f"disown shop:daily --sink rows --interval {day(number)} {how} --dry-run"
        yield f"disown shop:daily --sink rows --interval {day(number)} {how} --yes"


def pauses_the_dag(do: Doer) -> Iterator[str]:
    """In Airflow, if it knows the pipeline. Or lets it continue."""
    yield from ()
    if do.pause is not None:
        do.pause()


ACTS: dict[str, Act] = {
    each.__name__: each
    for each in (
        passes, watches_for_input, goes_by_the_clock, sets_aside, fails_a_gate, a_record_is_malformed, is_held,
        approves, rejects, quarantines_what_is_held, releases, corrects,
        corrects_by_sql, judges_again, diverts, releases_what_was_diverted,
        discards_rows, goes_back, goes_back_and_stops, names, forgets, forks, proposes, proposes_and_keeps,
        asks_why, backfills, backfills_everything,
        swaps,
        swaps_back, discards_the_backfill, moves_a_source, drops_a_source, reads_the_other_source, changes_the_code,
        stops, drains, cancels, suspends, resumes, resumes_after_the_end, recovers, drops_a_table_by_hand,
        leaves_a_table, loses_a_record, edits_a_state, bootstraps_a_state, makes_a_day, makes_a_day_again,
        a_day_is_malformed, others_rewrite_the_days, disowns, pauses_the_dag,
    )
}  # fmt: skip
