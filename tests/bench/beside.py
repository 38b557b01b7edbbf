"""A checkpoint of production beside a proposal that is at work, against the same checkpoint alone.

Production makes a checkpoint for each turn, in a process of its own, with a Spark of its own. Another process makes
proposals of changed code over its last checkpoints, one after the other, as `tidegate propose` does. When production is
measured alone, that process stands still, so both turns have the same memory and the same files.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable

from tests.bench.harness import Budget, Options, Result, core_seconds, in_turn
from tests.bench.sides import Side, environment

CODE = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("sales", interval="never")
orders = pipeline.source("orders", Files("landing/*.json", schema="id long, k long, amount double", max_files=1))
priced = orders.select("id", "k", "amount * {factor} AS amount")
priced.sink("orders", DeltaAppend("tables/orders"))
totals = priced.aggregate(by="k", n="count(*)", total="sum(amount)", uid="totals")
totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
"""
SETTINGS = """
root = "ledger"
num_retained = 20
[spark]
mode = "local"
master = "local[2]"
memory = "1g"
"""
OVER = 3
WARMUPS = 2
WAKES_S = 120.0


class Project:
    """A folder with production's code, the proposed code and the input."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows, self.files = folder, rows, 0
        (folder / "landing").mkdir()
        (folder / "tidegate.toml").write_text(SETTINGS)
        (folder / "shop.py").write_text(CODE.format(factor="1"))
        (folder / "branch.py").write_text(CODE.format(factor="2"))
        dice = random.Random(0)
        self._amounts = [(dice.randrange(1000), float(dice.randrange(1, 90))) for _ in range(rows)]
        lines = [json.dumps({"id": id, "k": k, "amount": amount}) for id, (k, amount) in enumerate(self._amounts)]
        (folder / "input").write_text("\n".join(lines) + "\n")

    def feed(self, number: int = 0) -> None:
        self.files += 1
        shutil.copyfile(self.folder / "input", self.folder / "landing" / f"{self.files:06d}.json")

    def differs(self) -> str:
        """What is not as if there had never been a proposal."""
        orders = DeltaTable(str(self.folder / "tables/orders")).to_pyarrow_table()
        totals = DeltaTable(str(self.folder / "tables/totals")).to_pyarrow_table().to_pylist()
        if orders.num_rows != self.files * self.rows:
            return f"{orders.num_rows} orders, and {self.files} files of {self.rows}"
        expected: dict[int, float] = {}
        for k, amount in self._amounts:
            expected[k] = expected.get(k, 0.0) + amount * self.files
        found = {row["k"]: row["total"] for row in totals}
        return "" if found == expected else "totals differ"


class Proposals:
    """A process that proposes without end. It leads a session of its own, as a runner of CI does."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "proposals.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.beside", "propose"],
                cwd=folder, env=environment(), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def core_seconds(self) -> float:
        return core_seconds(self._process.pid)

    def goes_on(self) -> None:
        """Let it work, and wait until it does."""
        before = self.core_seconds()
        self._signal(signal.SIGCONT)
        until = time.monotonic() + WAKES_S
        while self.core_seconds() <= before + 0.05:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no proposal is at work:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)

    def stands_still(self) -> None:
        self._signal(signal.SIGSTOP)

    def reports(self) -> int:
        """How many proposals have come to their report."""
        return self.log.read_text().count("## What this change does")

    @contextmanager
    def ended(self) -> Iterator[Proposals]:
        """End it at the end of the block."""
        try:
            yield self
        finally:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)


def run(options: Options) -> Result:
    project = Project(options.folder("beside"), options.size(200_000, 200))
    own_core: dict[str, list[float]] = {"beside": [], "alone": []}
    theirs: list[float] = []
    with Side(project.folder, "tests.bench.beside", "produce") as production:
        for _ in range(OVER + 1):
            project.feed()
            production.take(0)
        with Proposals(project.folder).ended() as proposals:

            def beside(number: int) -> float:
                project.feed()
                proposals.goes_on()
                before = proposals.core_seconds()
                seconds = production.take(number)
                theirs.append((proposals.core_seconds() - before) / seconds)
                proposals.stands_still()
                own_core["beside"].append(production.core_s[-1])
                return seconds

            def alone(number: int) -> float:
                project.feed()
                seconds = production.take(number)
                own_core["alone"].append(production.core_s[-1])
                return seconds

            found = in_turn(beside, alone, warmups=WARMUPS, pairs=2 * options.pairs).wall()
            reports = proposals.reports()
    wrong = project.differs()
    core = [ours / rival for ours, rival in zip(own_core["beside"], own_core["alone"], strict=True)][WARMUPS:]
    return Result(
        "beside",
        ours_s=statistics.median(found.ours),
        rival_s=statistics.median(found.rival),
        ratio=found.ratio,
        pairs=2 * options.pairs,
        equal=not wrong,
        wrong=wrong,
        keys={
            "spread": found.spread(),
            "ratio_cores": statistics.median(core),
            "proposal_cores": statistics.median(theirs[WARMUPS:]),
            "reports": reports,
        },
        budgets=(Budget("ratio", 1.1), Budget("ratio_cores", 1.1)),
    )


def produce() -> None:
    """Make a checkpoint for each line of the input, in the project's folder."""
    from tests.bench.floor_ours import serve_checkpoints

    sys.path.insert(0, os.getcwd())
    serve_checkpoints("shop:pipeline")


def propose() -> None:
    """Propose the branch's code again and again."""
    from tidegate.cli.main import main

    sys.path.insert(0, os.getcwd())
    while True:
        code = main(["propose", "branch:pipeline", "--over", str(OVER)])
        assert code == 0, code


if __name__ == "__main__":
    {"produce": produce, "propose": propose}[sys.argv[1]]()
