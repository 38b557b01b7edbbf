"""The story of `tidegate divert`: a table refuses rows since somebody has given it a constraint."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.kit.sampling import in_turn
from tests.views.shops import Said, Shops

pytestmark = in_turn(seconds=60)

CODE = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

pipeline = Pipeline("sales")
orders = pipeline.source("orders", Files("landing/sales/*.json", schema="id long, amount double"))
orders.sink("orders", DeltaAppend("tables/orders"){refused})
"""


class Sales(Shops):
    """A project whose table is also somebody else's."""

    def write_code(self, *, refused: str = ', refused="quarantine"') -> None:
        (self.folder / "landing" / "sales").mkdir(parents=True, exist_ok=True)
        (self.folder / "shop.py").write_text(CODE.format(refused=refused))
        sys.modules.pop("shop", None)
        importlib.invalidate_caches()

    def sell(self, *ids: int, after_the_decision: Callable[[str], None] | None = None) -> Said:
        self.files += 1
        lines = "".join(json.dumps({"id": id, "amount": 1.5 * id}) + "\n" for id in ids)
        (self.folder / "landing" / "sales" / f"{self.files:04d}.json").write_text(lines)
        return self.run("run shop:pipeline --until-idle", dies_at=after_the_decision)

    def refuse_three(self, point: str) -> None:
        """Somebody gives the table a constraint, in the moment between a decision and its publication."""
        table = DeltaTable(str(self.folder / "tables" / "orders"))
        if point == "S9.decision.after" and "delta.constraints.cheap" not in table.metadata().configuration:
            table.alter.add_constraint({"cheap": "id <> 3"})

    def ids(self) -> list[int]:
        table = DeltaTable(str(self.folder / "tables" / "orders"))
        return sorted(table.to_pyarrow_table(columns=["id"])["id"].to_pylist())


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Sales]:
    shop = Sales(tmp_path / "project")
    with shop.entered():
        yield shop


def test_rows_are_looked_at_diverted_explained_and_released(shop: Sales) -> None:
    shop.write_code(refused="")
    assert shop.sell(1, 2).code == 0
    said = shop.run("divert shop:pipeline orders --where 'id = 3'")
    assert (said.code, "sink 'orders' has no quarantine" in said.text) == (2, True)
    assert 'add refused="quarantine" to the sink' in said.text
    shop.write_code()
    assert "nothing waits for table 'orders'" in shop.run("divert shop:pipeline orders --where 'id = 3'").text

    said = shop.sell(3, 4, after_the_decision=shop.refuse_three)
    assert "cheap" in said.text
    assert "tidegate divert MODULE:PIPELINE orders --where SQL --dry-run" in " ".join(said.text.split())
    assert shop.ids() == [1, 2]
    told = shop.run("explain sales")
    assert "cheap" in told.text
    assert "tidegate divert" in told.text

    before = sorted(shop.folder.rglob("*.json"))
    said = shop.run("divert shop:pipeline orders --where 'id = 3' --dry-run --json")
    assert (said.code, said.json["rows"], said.json["by_checkpoint"]) == (0, 1, {"2": 1})
    assert said.json["shown"] == [{"id": 3, "amount": 4.5}]
    assert sorted(shop.folder.rglob("*.json")) == before, "a look writes nothing"
    said = shop.run("divert shop:pipeline orders --where 'id = 9' --dry-run")
    assert (said.code, "no waiting row matches 'id = 9'" in said.text) == (1, True)

    said = shop.run("divert shop:pipeline orders --where 'id = 3' --note 'a test order' --yes")
    assert said.code == 0, said.text
    assert "Checkpoint 3 has sent 1 row to quarantine; orders has the others." in said.text
    assert shop.ids() == [1, 2, 4]
    told = " ".join(shop.run("explain sales 3").text.split())
    assert "diverted 1 row that waited for orders to quarantine orders-refused (1 of checkpoint 2)" in told
    assert "because: a test order" in told
    assert "orders has taken the others." in told
    shown = shop.run("quarantine show sales orders-refused --rule diverted").text
    assert "diverted by" in shown
    assert "cheap" in shown

    said = shop.run("quarantine release sales orders-refused --set id=33 --all --yes")
    assert said.code == 0, said.text
    assert shop.run("run shop:pipeline --until-idle").code == 0
    assert shop.ids() == [1, 2, 4, 33]
