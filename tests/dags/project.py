"""A project folder with pipelines in DAG files, and what must be in their tables."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from tests.kit.jvm import INTERPRETED, toml
from tests.kit.waiting import eventually
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.protocol.view import Entry
from tidegate.spark.server import server as connect_server

SETTINGS = """
root = "ledger"
data = "."
tolerable_failed_checkpoints = 1000
[spark]
master = "local[2]"
memory = "1g"
idle_timeout = "2 min"
[restart]
delay = "1 s"
max_delay = "2 s"
"""

DAG_FILE = '''
"""Made by a test."""
from pathlib import Path

from tidegate import Pipeline
from tidegate.dag import asset, build_dag
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

HERE = Path({here!r})
pipeline = Pipeline({name!r}, **{settings!r})
rows = pipeline.source("rows", Files({name!r} + "/in/*.json", schema="id long, file long", max_files={max_files}))

@pipeline.stage(rows)
def seen(rows):
    {stage}
    return rows

{gate}
seen.sink("every", DeltaAppend({name!r} + "/every"))
seen.sink("latest", DeltaUpsert({name!r} + "/latest", keys=["id"], order_by="file"))
dag = build_dag(pipeline, {arguments})
'''


HELD = """
import os, time
(HERE / f"at_work-{os.getpid()}").touch()
while (HERE / "hold").exists():
    time.sleep(0.05)
"""
"""A stage that says which process it runs in, and waits for as long as the test holds it."""

SLOW_APART = f"""
def slow(rows):
{textwrap.indent(HELD, "    ")}
    return rows

seen = pipeline.stage(seen.job("apart"))(slow)
"""
"""A stage in a job of its own, which waits for as long as the test holds it."""

SLOW_BESIDE = f"""
seen.sink("fast", DeltaAppend(pipeline.name + "/fast"))
{SLOW_APART}
"""
"""The same, beside a sink that need not wait for it."""

ENDLESS = """
import os
(HERE / f"at_work-{os.getpid()}").touch()
if (HERE / "endless").exists():
    from pyspark.sql import functions as F
    numbers = rows.sparkSession.range(10**13).where("pmod(xxhash64(id), 1000003) = -1").withColumnRenamed("id", "n")
    rows = rows.join(numbers, rows.id == numbers.n, "left_anti")
"""
"""A stage that keeps all of Spark's cores at work, forever, if the test says so."""


ODD_IS_BAD = """
from tidegate.gates import BrokenRule, Gate, Judgement

class Even(Gate):
    kind = "even"
    quarantines = True
    hold_for = None

    def describe(self):
        return {"id": "is even"}

    def judge(self, rows, context):
        from pyspark.sql import functions as F
        policy, bad, count = (HERE / "policy").read_text(), rows.where("id % 2 = 1"), rows.count()
        if context.quarantine_held:
            policy = policy.replace("hold", "quarantine")
        marked = bad.withColumn(Judgement.RULES, F.array(F.lit("even")))
        split = (rows.where("id % 2 = 0"), marked) if policy == "quarantine" else None
        return Judgement(count, (BrokenRule("even", policy, rows=2, why="2 rows are odd"),), split=split)

seen = seen.gate(Even(), name="checked")
"""
"""A gate that finds each second row bad. What follows is said by the test, in the file `policy`."""


MULTIPLIES = """
if (HERE / "broken").exists():
    raise ValueError(f"this stage is {'broken'}")
rows = rows.selectExpr("id", f"file * {int((HERE / 'factor').read_text())} AS file")
"""
"""A stage whose code has a bug for as long as the file `factor` says so."""


class Project:
    """Each pipeline reads one file per checkpoint, and writes two tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dags = folder / "dags"
        self.dags.mkdir(parents=True)
        (folder / "tidegate.toml").write_text(SETTINGS + toml(INTERPRETED))

    def pipeline(
        self,
        name: str,
        *,
        stage: str = "pass",
        gate: str = "",
        arguments: str = "",
        max_files: int = 1,
        **settings: Any,
    ) -> Made:
        """A pipeline and its DAG file. `stage`: what its stage does before it passes the rows on; `gate`: behind it."""
        made = Made(self, name)
        (made.folder / "in").mkdir(parents=True, exist_ok=True)
        text = DAG_FILE.format(
            here=str(made.folder),
            name=name,
            settings=settings,
            stage=textwrap.indent(textwrap.dedent(stage), "    ").strip(),
            gate=gate,
            arguments=arguments,
            max_files=max_files,
        )
        (self.dags / f"dag_{name}.py").write_text(text)
        return made

    def close(self) -> None:
        """Stop the Spark server that its tasks have started."""
        connect_server.stop(self.folder / ".tidegate" / "spark", force=True)


class Made:
    """One pipeline of the project."""

    ROWS = 4

    def __init__(self, project: Project, name: str) -> None:
        self.project = project
        self.name = name
        self.folder = project.folder / name
        self.dag_file = project.dags / f"dag_{name}.py"
        self.fed = 0

    def feed(self, files: int = 1) -> Made:
        """New input: file k holds the ids k, k + 1 …, so that files overlap."""
        for _ in range(files):
            self.fed += 1
            path = self.folder / "in" / f"{self.fed:05d}.json"
            rows = [{"id": self.fed + i, "file": self.fed} for i in range(self.ROWS)]
            path.with_suffix(".tmp").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            path.with_suffix(".tmp").rename(path)
        return self

    # -- what its stage does -------------------------------------------------------------------------

    def hold(self) -> Made:
        (self.folder / "hold").touch()
        return self

    def release(self) -> None:
        (self.folder / "hold").unlink()

    def at_work(self, *, but: int = 0) -> int:
        """Wait for a process to be in the stage."""
        return int(eventually("a job is at work", lambda: next(iter(self._pids() - {but}), None), 180))

    def _pids(self) -> set[int]:
        return {int(path.name.partition("-")[2]) for path in self.folder.glob("at_work-*")}

    # -- what became of it ---------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        return open_ledger(str(self.project.folder / "ledger"), self.name)

    @property
    def entries(self) -> list[Entry]:
        return [entry for id in self.ledger.ids() if (entry := self.ledger.entry(id)) is not None]

    @property
    def completed(self) -> list[int]:
        return [entry.id for entry in self.entries if entry.completed]

    @property
    def published(self) -> list[int]:
        """The checkpoints that are in all tables."""
        return [id for id in self.completed if self.ledger.published(id) is not None]

    def outcomes(self) -> list[str]:
        """What became of each checkpoint, in order."""
        return ["open" if e.decision is None else e.decision.reason or "completed" for e in self.entries]

    def check(self, files: int) -> None:
        """Both tables hold exactly the first `files` files, each once."""
        expected = Counter((f + i, f) for f in range(1, files + 1) for i in range(self.ROWS))
        assert Counter(self.rows("every")) == expected
        assert dict(self.rows("latest")) == {id: max(f for i, f in expected if i == id) for id, _ in expected}
        assert len(self.rows("latest")) == len({id for id, _ in expected})

    def holds(self, files: int) -> bool:
        """The first `files` files are in both tables: one is published after the other."""
        newest = {file for _, file in self.rows_or_none("latest")}
        return files in newest and len(self.rows_or_none("every")) >= files * self.ROWS

    def rows(self, sink: str) -> list[tuple[int, int]]:
        from deltalake import DeltaTable

        table = DeltaTable(str(self.folder / sink)).to_pyarrow_table().to_pylist()
        return [(row["id"], row["file"]) for row in table]

    def rows_or_none(self, sink: str) -> list[tuple[int, int]]:
        """None yet if there is no table yet."""
        return self.rows(sink) if (self.folder / sink / "_delta_log").exists() else []
