"""`tidegate propose` is killed, as a process of its own: nothing of production has changed, and one command removes the
rest."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import ALL, in_turn
from tests.views.shops import Shops
from tidegate.ledger import Ledger, LocalStore

pytestmark = in_turn(seconds=90)

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
    code = main(["propose", "shop:pipeline", "--over", "2", "--keep"])
print("passed", int(sys.argv[1]) - left[0], "points", flush=True)
sys.exit(code)
"""
STEPS = (1, 2, 3, 5, 8, 13, 21, 30, 40, 50, 60, 70, 80) if ALL else (2, 13, 40, 80)
"""How many fault points the process passes until it is killed."""


class Sales(Shops):
    def write_code(self, **changes: Any) -> None:
        self.code |= changes
        (self.folder / "landing" / "sales").mkdir(parents=True, exist_ok=True)
        (self.folder / "shop.py").write_text(CODE.format(**{"factor": "1"} | self.code))
        sys.modules.pop("shop", None)
        importlib.invalidate_caches()

    def sell(self, *amounts: float) -> None:
        self.files += 1
        lines = [json.dumps({"id": n, "country": "AT", "amount": amount}) for n, amount in enumerate(amounts)]
        (self.folder / "landing" / "sales" / f"{self.files:04d}.json").write_text("\n".join(lines) + "\n")
        said = self.run("run shop:pipeline --until-idle")
        assert said.code == 0, said.text

    def production(self) -> dict[str, str]:
        """Every file of the pipeline and its tables, without those of lines and their pins, by its content."""
        found = {}
        for folder in ("ledger", "tables"):
            for path in sorted((self.folder / folder).rglob("*")):
                name = path.relative_to(self.folder).as_posix()
                if path.is_file() and "line" not in name and "/pins/" not in name:
                    found[name] = sha256(path.read_bytes()).hexdigest()
        return found

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.folder / "ledger" / "sales"), "sales")


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sales]:
    made = Sales(tmp_path_factory.mktemp("killed") / "project")
    with made.entered():
        for day in ((1.0, 2.0), (3.0,), (4.0, 5.0)):
            made.sell(*day)
        made.write_code(factor="2")
        yield made


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_proposal_leaves_production_as_it_was_and_is_removed_by_its_name(sales: Sales, step: int) -> None:
    before = sales.production()
    killed = _propose(sales.folder, step)
    assert sales.production() == before
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    names = [line.name for line in sales.ledger.proposals()]
    names += [pin.owner.removeprefix("line-") for pin in sales.ledger.pins() if pin.owner.startswith("line-")]
    for name in dict.fromkeys(names):
        assert sales.run(f"propose shop:pipeline --discard {name}").code == 0
    assert sales.ledger.proposals() == []
    assert sales.ledger.pins() == []
    assert sales.production() == before
    hidden = [path for path in (sales.folder / "tables").rglob("*") if "line-" in str(path) and path.is_file()]
    assert hidden == []


def test_beside_what_was_killed_one_comes_to_its_report(sales: Sales) -> None:
    _propose(sales.folder, 30)
    (left,) = sales.ledger.proposals()
    whole = _propose(sales.folder, 1_000_000)
    assert whole.returncode == 1, "its state does not fit: a merge is refused, and everything is replayed"
    assert f"Proposal {left.name} of" in whole.stdout
    assert "rows of `totals`" in whole.stdout
    passed = int(whole.stdout.split("passed")[1].split()[0])
    assert passed > max(STEPS), f"it passes {passed} points: kill it earlier"
    for line in sales.ledger.proposals():
        assert sales.run(f"propose shop:pipeline --discard {line.name}").code == 0


def _propose(folder: Path, step: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", KILLED, str(step)]
    return subprocess.run(words, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=300)
