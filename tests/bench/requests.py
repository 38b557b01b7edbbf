"""What a checkpoint asks of an object store, counted on a real S3 server, and a formula that fits it.

Nothing here is timed. `make bench NAME=requests` counts on pipelines of different numbers of jobs, tables and sources,
finds the constants of the formula (tests/bench/formula.py), and checks them on pipelines that it has not seen before.
docs/operations/scale.md has the constants; `python -m tests.bench.requests` writes them there.

Control plane only: jobs ask for their turn and ack, but no Spark runs. `--spark` counts what real jobs add.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tests.bench.formula import BYTES, DOCUMENT, Constants, Shape, difference, examples_of, fit, table, table_of, write
from tests.bench.harness import Options, Result
from tests.kit.limits import Limits
from tests.kit.s3 import S3Server, s3
from tidegate import Pipeline, seams
from tidegate.config import load_settings
from tidegate.connectors.delta.sink.table import StagedBatch
from tidegate.connectors.sink import Staging
from tidegate.coordinator import Coordinator
from tidegate.delta import StagedFile
from tidegate.execution.job.run_job import Attempt, run_job
from tidegate.history.table import remember
from tidegate.ledger.ledger import open_ledger, stamp
from tidegate.pipeline import Job
from tidegate.records.place import Place
from tidegate.records.records import Ack, JobStats, Payload
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files
from tidegate.spark.server import server as server_of_spark
from tidegate.spark.session import session, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEN = tuple(Shape(*shape) for shape in ((1, 1, 1), (2, 2, 1), (3, 3, 1), (1, 1, 2), (1, 5, 1), (1, 10, 1)))
UNSEEN = (Shape(3, 10, 1), Shape(2, 5, 3))
FEW_SEEN, FEW_UNSEEN = (Shape(1, 1, 1), Shape(2, 3, 1), Shape(1, 3, 1), Shape(1, 1, 2)), (Shape(2, 4, 2),)
TOLERATED = 0.05
"""How far the formula may be from what is counted."""
RETAINED = 10
"""As by default."""
MERGING = 8
"""The history merges its files in every eighth checkpoint: counts are means over so many. All are made before the
twentieth, when the history's log gets its first checkpoint."""

T = TypeVar("T")

COLUMNS = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}


def run(options: Options) -> Result:
    seen, unseen = (FEW_SEEN, FEW_UNSEEN) if options.quick else (SEEN, UNSEEN)
    retained = 1 if options.quick else RETAINED
    counted = {}
    with contextlib.ExitStack() as servers:
        server = servers.enter_context(s3())
        for shape in (*seen, *unseen):
            counted[shape] = Bucket(server, shape, retained).settled(options.size(MERGING, 2))
            if not options.quick:  # a new one: it lists a bucket by looking at all that is in there
                servers.close()
                server = servers.enter_context(s3())
    counts = {f"{shape.jobs}-{shape.tables}-{shape.sources}": rounds for shape, rounds in counted.items()}
    options.folder("requests").joinpath("counted.json").write_text(json.dumps(counts, indent=1))
    found = fit({shape: counted[shape] for shape in seen})
    wrong = [text for shape in unseen if (text := difference(found, shape, counted[shape], TOLERATED))]
    ten = Shape(1, 10, 1)
    return Result(
        "requests",
        ours_s=0.0,
        pairs=len(counted),
        equal=not wrong,
        wrong="; ".join(wrong),
        keys={
            "requests": round(found.requests(ten)),
            "requests_no_commits": round(found.requests(ten, commits=0)),
            "bytes": round(found.bytes(ten)),
            "constants": found.to_json(),
        },
    )


class Bucket:
    """A pipeline with everything in a bucket, whose checkpoints are made without Spark, each request counted."""

    def __init__(self, server: S3Server, shape: Shape, retained: int = RETAINED, *, state: bool = False) -> None:
        self.server = server
        self.shape = shape
        self.retained = retained
        self.folder = f"{shape.jobs}-{shape.tables}-{shape.sources}-{int(state)}"
        settings = server.settings(self.folder)
        place = Place(settings["data"], server.options)
        ledger = open_ledger(settings["root"], "counted", dict(server.options))
        limits = Limits(num_retained=retained, max_unpublished=retained)
        self.control = Coordinator(pipeline_of(shape, state).graph(place), ledger, limits, place)
        self.made = 0

    def settled(self, count: int) -> list[dict[str, int]]:
        """So many checkpoints in a row, counted by step: after the first ones, when retention has begun."""
        for _ in range(self.retained + 1):
            self.checkpoint()
        return [self.checkpoint() for _ in range(count)]

    def checkpoint(self) -> dict[str, int]:
        """One more: the requests of each step; the bytes of its records; commits since the tables' log checkpoints."""
        control, counts = self.control, Counter({"commits": self.made})
        self.made += 1
        self._land()

        def step(name: str, do: Callable[[], T]) -> T:
            with self.server.counted() as by_method:
                done = do()
            counts[name] += sum(by_method.values())
            return done

        triggered: Any = step("trigger", lambda: control.trigger(seams.new_id()))
        id = triggered.plan.id
        for job in control.graph.jobs:
            self._work(id, job, step)
        assert step("complete", lambda: control.complete(id)).state == "completed"
        report = step("publish", control.publish)
        assert not report.stuck, report.stuck
        assert step("record", lambda: remember(control.ledger, control.place.options)) == 1
        if self.made > self.retained:
            records = self.server.objects(f"{self.folder}/ledger/counted/checkpoints/{id:08d}/")
            counts[BYTES] = sum(map(len, records.values()))
        step("retire", control.retire)
        return dict(counts)

    def _work(self, id: int, job: Job, step: Callable[[str, Callable[[], Any]], Any]) -> None:
        """What a job asks without its rows: whether it is its turn, and its ack."""
        committables = self._staged(id, [sink.name for sink in job.sinks])
        _, prev = step("jobs", Attempt(self.control, id, job.name, lambda _: None).ask)
        channels = {name: Payload(data={}) for name in job.gives}
        told: dict[str, Any] = {"id": id, "job": job.name, "prev": prev, "channels": channels, "stats": JobStats()}
        step("jobs", lambda: self._ack(told, committables))

    def _land(self) -> None:
        for source in range(self.shape.sources):
            self.server.put(f"{self.folder}/data/landing/{source}/{self.made}.json", b'{"id": 1}\n')

    def _staged(self, id: int, sinks: Sequence[str]) -> dict[str, Any]:
        """What a job would have staged: one file for each table."""
        committables = {}
        for sink in sinks:
            path = f"{Staging(id, ATTEMPT).folder(self.control.context(sink))}/part-00000.parquet"
            self.server.put(f"{self.folder}/data/tables/{sink}/{path}", PARQUET)
            file = StagedFile(path=path, size=len(PARQUET), rows=1, stats='{"numRecords":1}')
            committables[sink] = msgspec.to_builtins(StagedBatch(columns=COLUMNS, files=[file]))
        return committables

    def _ack(self, told: dict[str, Any], committables: dict[str, Any]) -> None:
        ledger, parts = self.control.ledger, self.control.graph.parts
        sinks = {name: ledger.pack(value, parts) for name, value in committables.items()}
        ledger.create_ack(Ack(**stamp(ATTEMPT), **told, sinks=sinks))


class WithSpark(Bucket):
    """The same with real jobs. Each has a table, the first one has a state in addition if asked for."""

    def __init__(self, server: S3Server, shape: Shape, spark: SparkSession, *, state: bool = False) -> None:
        super().__init__(server, shape, retained=3, state=state)
        self.spark = spark
        self.clients: list[Counter[str]] = []
        """The requests of the jobs of each checkpoint, by who asked."""

    def checkpoint(self) -> dict[str, int]:
        self.clients.append(Counter())
        return super().checkpoint()

    def _work(self, id: int, job: Job, step: Callable[[str, Callable[[], Any]], Any]) -> None:
        with self.server.counted_by_client() as clients:
            step("jobs", lambda: run_job(self.control, id, job.name, self.spark))
        self.clients[-1].update(clients)


def jobs_with_spark() -> list[str]:
    """Count what real jobs ask for, Spark's part and ours, and return it as the document has it."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, s3() as server:
        settings = load_settings({**server.settings("spark"), "spark.master": "local[2]"}, env={}, start=Path(folder))
        with session(spark_settings(settings)) as spark:
            for shape, state in REAL:
                bucket = WithSpark(server, shape, spark, state=state)
                for _ in range(4):
                    bucket.checkpoint()
                last = bucket.clients[-1]
                row = [shape.jobs, shape.tables + state, shape.sources, int(state), sum(last.values()), last["spark"]]
                rows.append([*map(str, row)])
        server_of_spark.stop(spark_settings(settings).home, force=True)
    return table(("jobs", "tables", "sources", "states", "requests of the jobs", "of which Spark's"), rows)


REAL = (
    (Shape(1, 1, 1), False),
    (Shape(1, 1, 1), True),
    (Shape(1, 3, 1), False),
    (Shape(1, 1, 3), False),
    (Shape(3, 3, 1), False),
)
ATTEMPT = "0" * 16


def _parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}), buffer)
    return buffer.getvalue()


PARQUET = _parquet()


def pipeline_of(shape: Shape, state: bool = False) -> Pipeline:
    """Declare a pipeline of so many jobs, tables and sources: the first job reads, the others take what it has read.

    state: the first job also counts rows by key, into a table more.
    """
    pipeline = Pipeline("counted")
    streams = [
        pipeline.source(f"source-{number}", Files(f"landing/{number}/*.json", schema="id long"))
        for number in range(shape.sources)
    ]
    rows = pipeline.stage(*streams, name="all")(lambda first, *_: first)
    jobs = [rows, *(rows.job(f"job-{number}") for number in range(1, shape.jobs))]
    if state:
        rows.aggregate(by="id", n="count(*)", uid="counts").sink("counts", DeltaUpsert("tables/counts", keys=["id"]))
    for number in range(shape.tables):
        jobs[number % shape.jobs].sink(f"table-{number:04}", DeltaAppend(f"tables/table-{number:04}"))
    return pipeline


def main() -> None:
    """Count, and write the constants into the document."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.requests", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pipelines: shows that it works, writes nothing")
    parser.add_argument("--spark", action="store_true", help="count what real jobs ask for instead")
    given = parser.parse_args()
    if given.spark:
        found_lines = jobs_with_spark()
        print("\n".join(found_lines))
        write(found_lines)
        return
    result = run(Options(quick=given.quick))
    found = Constants.from_json(result.keys["constants"])
    print("\n".join([*table_of(found), "", *examples_of(found)]))
    print(result.wrong or "The formula holds for pipelines that it was not fitted to.")
    if not given.quick:
        write(table_of(found), examples_of(found))
        print(f"Written to {DOCUMENT}.")


if __name__ == "__main__":
    main()
