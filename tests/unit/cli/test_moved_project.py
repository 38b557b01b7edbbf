"""A project's folder is moved, or copied: its checkpoints are read from where it lies now, and it continues there."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kit.delta import by_foreigner
from tests.kit.shop import CODE, SHOP, Shop
from tidegate.delta import locate
from tidegate.history.query import CheckpointHistory
from tidegate.ui import views


class Moving:
    """A project with two checkpoints that can be moved and copied."""

    def __init__(self, folder: Path, monkeypatch, tidegate, code: str = SHOP) -> None:
        self.monkeypatch, self.tidegate = monkeypatch, tidegate
        self.old, self.new = folder / "old", folder / "new"
        self.old.mkdir()
        shutil.move(folder / "tidegate.toml", self.old)
        self.shop = self.opened(self.old, code)
        for _ in range(2):
            self.shop.checkpoint()

    def opened(self, folder: Path, code: str = SHOP) -> Shop:
        self.monkeypatch.chdir(folder)
        sys.modules.pop("shop", None)
        sys.path[:] = [each for each in sys.path if each not in (str(self.old), str(self.new))]
        shop = Shop(folder, code)
        sinking = shop.coordinator.graph.sinks["good"]
        shop.table = locate(shop.coordinator.place, sinking.sink.path)
        return shop

    def read(self, pipeline: str = "orders", checkpoint: int = 2):
        said = self.tidegate("read", pipeline, "good", "--checkpoint", str(checkpoint), "--json")
        assert said.code == 0, said
        return said.json["table"], sorted(row["k"] for row in said.json["rows"])

    def forget_home(self) -> None:
        """As earlier versions wrote it."""
        for path in self.new.rglob("published.json"):
            record = json.loads(path.read_text())
            path.write_text(json.dumps({name: record[name] for name in record if name not in ("home", "paths")}))


@pytest.fixture
def moving(folder, monkeypatch, tidegate):
    return Moving(folder, monkeypatch, tidegate)


@pytest.mark.parametrize("pipeline", ["orders", CODE])
def test_a_moved_project_is_read_where_it_lies_now_and_continues(moving, tidegate, pipeline):
    shutil.move(moving.old, moving.new)
    shop = moving.opened(moving.new)
    here = str(moving.new / "tables" / "good")
    assert moving.read(pipeline) == (here, [1, 2])
    assert moving.read(pipeline, 1) == (here, [1])
    assert tidegate("read", pipeline, "--json").json["tables"]["good"]["rows"] == 2
    told = tidegate("diff", pipeline, "1", "2", "--json")
    assert told.code == 0, told
    assert told.json["tables"]["good"] == {"versions": [0, 1], "rows": [1, 2]}
    found = {f["check"]: (f["state"], f["detail"]) for f in tidegate("doctor", pipeline, "--json").json["findings"]}
    assert found["table good"] == ("ok", f"2 versions of {here} are as published")
    assert not [told for told in found.values() if str(moving.old) in told[1]]
    shown = tidegate("show", pipeline, "2", "--json").json
    assert shown["tables"]["good"]["uri"] == here
    assert here in tidegate("show", pipeline, "2").out
    assert str(moving.old) not in tidegate("explain", pipeline, "2").out
    listed = tidegate("list", pipeline, "--json").json["checkpoints"]
    assert {row["tables"]["good"]["uri"] for row in listed} == {here}
    known = SimpleNamespace(
        data=str(moving.new),
        options={},
        past=lambda: CheckpointHistory(shop.coordinator.ledger, {}),
        card=SimpleNamespace(rows_stay={}),
    )
    assert views.rollback_plan(known, 1).tables["good"].uri == here
    compared = views.compared(known, 1, 2).tables["good"]
    assert {compared.before["uri"], compared.after["uri"]} == {here}
    assert shop.checkpoint() == 3
    assert moving.read(pipeline, 3) == (here, [1, 2, 3])


def test_of_a_copied_project_each_reads_its_own_tables(moving, tidegate):
    shutil.copytree(moving.old, moving.new)
    moving.opened(moving.new)
    assert moving.read()[0] == str(moving.new / "tables" / "good")
    shutil.rmtree(moving.new / "tables")
    said = tidegate("read", "orders", "good", "--json")
    assert said.code == 3
    assert str(moving.new / "tables" / "good") in said.err, "what lies at the old place is not read instead"
    assert str(moving.old) not in said.err
    found = {f["check"]: f["state"] for f in tidegate("doctor", "orders", "--json").json["findings"]}
    assert found["table good"] == "bad"


def test_another_table_at_the_new_place_is_not_taken_for_the_one_that_was_published(moving, tidegate):
    shutil.move(moving.old, moving.new)
    shutil.rmtree(moving.new / "tables")
    shop = moving.opened(moving.new)
    by_foreigner(shop.table, (7, "another"))
    by_foreigner(shop.table, (8, "another"))
    said = tidegate("read", "orders", "good", "--json")
    assert (said.code, "is not the one that was published" in said.err) == (3, True), said


def test_a_data_folder_that_only_the_code_knows_is_found_by_the_name_too(folder, monkeypatch, tidegate):
    code = SHOP.replace('Pipeline("orders", ', 'Pipeline("orders", data="warehouse", ')
    moving = Moving(folder, monkeypatch, tidegate, code)
    assert moving.read() == (str(moving.old / "warehouse" / "tables" / "good"), [1, 2])
    shutil.move(moving.old, moving.new)
    moving.opened(moving.new, code)
    assert moving.read() == (str(moving.new / "warehouse" / "tables" / "good"), [1, 2])
    assert moving.read(CODE) == (str(moving.new / "warehouse" / "tables" / "good"), [1, 2])


def test_a_table_with_an_absolute_path_stays_where_it_is(folder, monkeypatch, tidegate):
    elsewhere = folder / "old" / "elsewhere"
    code = SHOP.replace('"tables/good"', repr(str(elsewhere)))
    moving = Moving(folder, monkeypatch, tidegate, code)
    shutil.copytree(moving.old, moving.new)
    moving.opened(moving.new, code)
    assert moving.read() == (str(elsewhere), [1, 2])


def test_records_that_do_not_say_where_the_project_lay_are_read_with_the_code(moving, tidegate):
    shutil.move(moving.old, moving.new)
    moving.forget_home()
    shop = moving.opened(moving.new)
    said = tidegate("read", "orders", "good")
    assert (said.code, "MODULE:PIPELINE" in said.err) == (3, True), said
    assert moving.read(CODE) == (str(moving.new / "tables" / "good"), [1, 2])
    shop.checkpoint()
    assert moving.read("orders", 3)[1] == [1, 2, 3]
