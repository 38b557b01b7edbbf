"""What a small checkpoint costs: the shipped example with 2,000 orders and 1,800 payments a checkpoint.

As `tidegate run` makes it, with Spark on the embedded server: `first_s` is from the start of the process, with no
server and empty folders, until the first checkpoint is in all tables; `example_s` from there on from one such moment
to the next, the median from the seventh checkpoint on. `changed_s`: the first checkpoint of a new process whose code
has changed, from its start, with the server still running. `one_operator_s`: the same of a source, one aggregate and a
sink, 100 rows a checkpoint. `idle_cpu_s`: processor time of the process and of the server for a checkpoint of the
example that finds no input. `queries` (SQL executions), `jobs`, `tasks` and `idle_queries` are counted in a run of its
own, in Spark's event log. `airflow_s`: the third checkpoint of a fresh start under a real Airflow, from its plan until
it is in all tables, the median of three starts; `airflow_run_s` is its whole DAG run.

`ratio`: in turn with Structured Streaming (floor_streaming.py), whose queries for the same graph stay running, on the
same files; ours is the example on the embedded server, the rival runs in a process of its own, as people start it, and
stands still while it is not its turn. Both have made as many checkpoints, or batches, before. Now and then the rival
looks for files while they land, and takes them in two batches: the median leaves such a round out.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

from tests.bench.dag import airflow, one_run, until
from tests.bench.floor_project import EXAMPLE, Made, Project, Work, event_log, works
from tests.bench.floor_streaming import LANDING
from tests.bench.harness import Budget, Options, Pairs, Result, Turns, in_turn
from tests.bench.sides import Side
from tests.kit.example import Expected
from tidegate.cli.up.airflow import Airflow, Dag
from tidegate.history.table import live_row
from tidegate.records.moments import moment_of

WARM = 6
"""So many checkpoints come first."""
AIRFLOW_RUNS = 3
AIRFLOW_STARTS = 3


class Floor:
    """What is measured, each part in a folder of its own."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.root = options.folder("floor")
        self.files, self.rows = options.size(2, 6), options.size(1_000, 20)
        """Files a checkpoint, and orders a file. A file spans half a minute: a quick run, too, shall complete some."""
        self.warm = options.size(WARM, 1)
        self.busy, self.idle = options.size(WARM + 6, 2), options.size(4, 2)

    def project(self, name: str, logged: bool = False) -> Project:
        folder = self.root / name
        return Project(folder, self.files, self.rows, event_log(self.root / f"{name}-log") if logged else "")

    def example(self, project: Project, busy: int) -> tuple[list[Made], list[Made]]:
        """So many checkpoints with input, and some without."""
        project.feed(busy)
        made = project.run(EXAMPLE, "orders", busy + self.idle)
        return made[:busy], made[busy:]

    def one_operator(self, project: Project) -> float:
        """Seconds of a checkpoint of one operator, on a server that is warm."""
        count = 2 * WARM + 4 if not self.options.quick else 2
        project.feed_events(count, 100)
        return median(project.run("one_operator:pipeline", "counts", count)[self.warm :], lambda each: each.seconds)

    def after_a_change(self, project: Project) -> float:
        """Seconds of a new process's first checkpoint, in which a stage has new code, on a server that is warm."""
        project.change_code()
        project.feed(1)
        return project.run(EXAMPLE, "orders", 1)[0].seconds

    def turns(self, project: Project) -> tuple[Turns, float, str]:
        """The example in turn with Structured Streaming, the ratio of processor time, and what differs then."""
        theirs = self.root / "streaming"
        theirs.mkdir()
        with (
            Side(theirs, "tests.bench.floor_streaming", str(theirs)) as streaming,
            Side(project.folder, "tests.bench.floor_ours", beside=project.server) as ours,
        ):
            for number in range(self.busy):
                hand_over(project, number, theirs)
                streaming.take(number)

            def land(number: int) -> None:
                project.feed(1)
                hand_over(project, self.busy + number, theirs)

            turns = in_turn(
                ours.take,
                lambda number: streaming.take(self.busy + number),
                warmups=self.options.size(2, 0),
                pairs=self.options.pairs,
                before=land,
            )
        cores = Pairs(*(side.core_s[-self.options.pairs :] for side in (ours, streaming)))
        return turns, cores.ratio, differs(project, theirs)

    def counted(self) -> tuple[list[Work], list[Work]]:
        """What Spark does for checkpoints with input, and for those without."""
        project = self.project("counted", logged=True)
        try:
            busy, idle = self.example(project, self.warm + 2)
        finally:
            project.stop_spark()
        return self.counts("counted", busy, idle)

    def counts(self, name: str, busy: list[Made], idle: list[Made]) -> tuple[list[Work], list[Work]]:
        found = works(self.root / f"{name}-log", [*busy, *idle])
        return found[: len(busy)], found[len(busy) :]

    def under_airflow(self) -> dict[str, float]:
        """The third checkpoint of a fresh start: what else Airflow does just then moves it by a second."""
        starts = [self.third_under_airflow(f"airflow{number}") for number in range(AIRFLOW_STARTS)]
        return {name: median(starts, itemgetter(name)) for name in starts[0]}

    def third_under_airflow(self, name: str) -> dict[str, float]:
        project = self.project(name)
        with airflow(project.folder) as server:
            dag = until("the DAG", lambda: the_dag(server))
            server.unpause(dag)
            seconds = 0.0
            for _ in range(AIRFLOW_RUNS):
                project.feed(1)
                seconds = one_run(server, dag)
        ledger = project.ledger("orders")
        entry = ledger.entry(AIRFLOW_RUNS)
        assert entry is not None
        row = live_row(ledger, entry)
        planned, published = moment_of(row.planned), moment_of(row.published)
        assert planned is not None
        assert published is not None, f"checkpoint {AIRFLOW_RUNS} is {row.outcome}"
        return {"airflow_s": (published - planned).total_seconds(), "airflow_run_s": seconds}


def run(options: Options) -> Result:
    floor = Floor(options)
    project = floor.project("example", logged=options.quick)
    try:
        busy, idle = floor.example(project, floor.busy)
        turns, ratio_cores, wrong = floor.turns(project)
        changed_s = floor.after_a_change(project)
        one_operator_s = floor.one_operator(project)
    finally:
        project.stop_spark()
    # A log costs time: only a quick run counts where it measures, and it leaves Airflow out.
    work, idle_work = floor.counts("example", busy, idle) if options.quick else floor.counted()
    under_airflow = {} if options.quick else floor.under_airflow()
    wall = turns.wall()
    return Result(
        "floor",
        ours_s=statistics.median(wall.ours),
        pairs=len(wall.ours),
        rival_s=statistics.median(wall.rival),
        ratio=wall.ratio,
        equal=not wrong,
        wrong=wrong,
        keys={
            "spread": wall.spread(),
            "ratio_cores": ratio_cores,
            "first_s": busy[0].seconds,
            "changed_s": changed_s,
            "example_s": median(busy[floor.warm :], lambda made: made.seconds),
            "example_cpu_s": median(busy[floor.warm :], lambda made: made.cpu_s),
            **under_airflow,
            "one_operator_s": one_operator_s,
            "queries": median(work[floor.warm :], lambda each: each.queries),
            "jobs": median(work[floor.warm :], lambda each: each.jobs),
            "tasks": median(work[floor.warm :], lambda each: each.tasks),
            "idle_s": median(idle[1:], lambda made: made.seconds),
            "idle_cpu_s": median(idle[1:], lambda made: made.cpu_s),
            "idle_queries": median(idle_work[1:], lambda each: each.queries),
            "orders": floor.files * floor.rows,
        },
        budgets=(
            Budget("ratio", 1.0),
            Budget("first_s", 20.0),
            Budget("example_s", 2.0),
            Budget("airflow_s", 4.0),
            Budget("one_operator_s", 0.7),
            Budget("queries", 12),
            Budget("idle_cpu_s", 0.5),
            Budget("idle_queries", 0),
        ),
    )


def median(made: list[Any], of: Callable[[Any], float]) -> float:
    return statistics.median(map(of, made))


def hand_over(project: Project, number: int, theirs: Path) -> None:
    """The files of a checkpoint, ready for the rival's batch."""
    numbers = range(number * project.files + 1, (number + 1) * project.files + 1)
    for landing in LANDING:
        ready = theirs / "ready" / f"{number:04d}" / landing
        ready.mkdir(parents=True)
        for each in numbers:
            name = f"{Path(landing).name}-{each:06d}.json"
            os.link(project.data / landing / name, ready / name)


def the_dag(server: Airflow) -> Dag | None:
    if errors := server.import_errors():
        raise RuntimeError(str(errors))
    return next((dag for dag in server.dags() if dag.id == "orders"), None)


def differs(project: Project, theirs: Path) -> str:
    """Both have the same revenue in each minute that both have closed; totals are those of all that was fed."""
    ours = project.data / "tables"
    revenues = [revenue(side) for side in (ours, theirs)]
    if not all(revenues):
        return f"{len(revenues[0])} rows of revenue, Structured Streaming has {len(revenues[1])}"
    closed = min(max(row[0] for row in rows) for rows in revenues)
    left, right = (sorted(row for row in rows if row[0] <= closed) for rows in revenues)
    if left != right:
        return f"until {closed} revenue is {left}, that of Structured Streaming {right}"
    expected = Expected(project.fed, project.fed, project.rows).totals
    for name, side in (("our", ours), ("Structured Streaming's", theirs)):
        found = {row["customer_id"]: (row["spent"], row["orders"], row["last"]) for row in table(side / "totals")}
        if found != expected:
            return f"{name} totals are {found}, not {expected}"
    return ""


def revenue(tables: Path) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in ("window_start", "country", "revenue", "orders"))
        for row in table(tables / "revenue")
    ]


def table(folder: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return rows
