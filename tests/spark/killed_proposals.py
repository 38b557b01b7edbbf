"""`make proposals`: proposals are killed again and again while production makes its checkpoints.

In every second round production is at rest while the proposal works: then each of its bytes must be what it was. In the
others it makes a checkpoint meanwhile: what was there stays as it was, and its tables are as if nobody had proposed.
tests/spark/test_killed_proposals.py is the short form.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.views.shops import Shops
from tidegate.ledger import Ledger, LocalStore

__all__ = ["Sales", "kill_proposals", "propose", "start_proposal"]

CODE = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("sales")
orders = pipeline.source("orders", Files("landing/sales/*.json", schema="id long, country string, amount double"))
orders.sink("orders", DeltaAppend("tables/orders"))
totals = orders.aggregate(by="country", n="count(*)", total="sum(amount * {factor})", uid="totals")
totals.sink("totals", DeltaUpsert("tables/totals", keys=["country"]))
"""
KILLED = """
import os, signal, sys
sys.path.insert(0, os.getcwd())
from dataclasses import replace
from tidegate import seams
from tidegate.cli.main import main
from tidegate.spark.server import priority

priority.LOWEST = 0
left = [int(sys.argv[1])]

def fault(point):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with seams.installed(replace(seams.current(), fault=fault)):
    code = main(["propose", f"{sys.argv[2]}:pipeline", "--over", "2", "--keep"])
print("passed", int(sys.argv[1]) - left[0], "points", flush=True)
sys.exit(code)
"""
BRANCH = "branch"
FURTHEST = 80
"""A proposal passes more fault points than that."""


class Sales(Shops):
    """A shop whose production has its code in shop.py, and a branch with other code."""

    def write_code(self, **changes: Any) -> None:
        self.code |= changes
        (self.folder / "landing" / "sales").mkdir(parents=True, exist_ok=True)
        (self.folder / "shop.py").write_text(CODE.format(**{"factor": "1"} | self.code))
        (self.folder / f"{BRANCH}.py").write_text(CODE.format(factor="2"))
        sys.modules.pop("shop", None)
        importlib.invalidate_caches()

    def sell(self, *amounts: float) -> None:
        self.feed(*amounts)
        self.makes_checkpoint()

    def feed(self, *amounts: float) -> None:
        self.files += 1
        lines = [json.dumps({"id": n, "country": "AT", "amount": amount}) for n, amount in enumerate(amounts)]
        (self.folder / "landing" / "sales" / f"{self.files:04d}.json").write_text("\n".join(lines) + "\n")

    def makes_checkpoint(self) -> None:
        # The state of the branch does not fit: each proposal replays from the first checkpoint on.
        said = self.run("run shop:pipeline --until-idle -D timeout=1h -D num_retained=1000")
        assert said.code == 0, said.text

    def production(self) -> dict[str, str]:
        """Every file of the pipeline and its tables, without those of lines and their pins, by its content."""
        found = {}
        for folder in ("ledger", "tables"):
            for path in sorted((self.folder / folder).rglob("*")):
                name = path.relative_to(self.folder).as_posix()
                if path.is_file() and not any(part in name for part in ("/lines/", "/line-", "/pins/")):
                    found[name] = sha256(path.read_bytes()).hexdigest()
        return found

    def hidden(self) -> list[Path]:
        """The files of proposals among those of the tables."""
        return [path for path in (self.folder / "tables").rglob("*") if "line-" in str(path) and path.is_file()]

    def rows(self, table: str) -> list[dict[str, Any]]:
        return list(DeltaTable(str(self.folder / "tables" / table)).to_pyarrow_table().to_pylist())

    def discard_proposals(self) -> None:
        """What processes have left is removed by its name."""
        names = [line.name for line in self.ledger.proposals()]
        names += [pin.owner.removeprefix("line-") for pin in self.ledger.pins() if pin.owner.startswith("line-")]
        for name in dict.fromkeys(names):
            assert self.run(f"propose shop:pipeline --discard {name}").code == 0
        assert self.ledger.proposals() == []
        assert self.ledger.pins() == []
        assert self.hidden() == []

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.folder / "ledger" / "sales"), "sales")


def start_proposal(folder: Path, step: int, module: str) -> subprocess.Popen[str]:
    """Start `tidegate propose` as a process that is killed at the fault point of this number."""
    words = [sys.executable, "-c", KILLED, str(step), module]
    return subprocess.Popen(
        words, cwd=folder, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def propose(folder: Path, step: int, module: str = "shop") -> tuple[int, str]:
    """The same to its end: its exit code, and what it has said."""
    process = start_proposal(folder, step, module)
    said, _ = process.communicate(timeout=580)
    return process.returncode, said


def is_of_table(name: str) -> bool:
    """Whether nobody ever changes a file of this name: it belongs to a Delta table. The ledger's history is no table:
    its files are united."""
    is_changing = "/history/" in name or name.endswith("/_last_checkpoint")
    return not is_changing and ("/_delta_log/" in name or name.endswith(".parquet"))


def kill_proposals(sales: Sales, kills: int, seed: int, note: Callable[[str], None]) -> None:
    """Kill so many proposals at points that are drawn."""
    dice = random.Random(seed)
    sold = [float(row["amount"]) for row in sales.rows("orders")]
    began = time.monotonic()
    for number in range(kills):
        step = dice.randint(1, FURTHEST)
        is_at_rest = number % 2 == 0
        amounts = [float(dice.randrange(1, 100)) for _ in range(3)]
        before = sales.production()
        process = start_proposal(sales.folder, step, BRANCH)
        if not is_at_rest:
            sales.sell(*amounts)
            sold += amounts
        said, _ = process.communicate(timeout=580)
        assert process.returncode == -signal.SIGKILL, said
        after = sales.production()
        if is_at_rest:
            assert after == before, f"kill {number} at point {step} has changed production"
        else:
            changed = [name for name, sha in before.items() if is_of_table(name) and after.get(name) != sha]
            assert changed == [], f"kill {number} at point {step} has changed what was in the tables: {changed}"
        (total,) = sales.rows("totals")
        assert (total["n"], total["total"]) == (len(sold), sum(sold))
        assert sorted(row["amount"] for row in sales.rows("orders")) == sorted(sold)
        where = "production at rest" if is_at_rest else "beside a checkpoint"
        note(f"kill {number + 1} at point {step}, {where}, {time.monotonic() - began:.0f} s")
        if dice.random() < 0.3:
            sales.discard_proposals()
    sales.discard_proposals()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.killed_proposals", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-proposals-") as folder:
        sales = Sales(Path(folder) / "project")
        with sales.entered():
            for day in ((1.0, 2.0), (3.0,), (4.0, 5.0)):
                sales.sell(*day)
            kill_proposals(sales, options.kills, options.seed, lambda text: print(text, flush=True))
    print(f"{options.kills} proposals were killed: production is as if nobody had proposed")


if __name__ == "__main__":
    main()
