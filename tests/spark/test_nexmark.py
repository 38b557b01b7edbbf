"""The queries of Nexmark on a few thousand events, some of them late, with a crash: equal to DuckDB's, to the row."""

from __future__ import annotations

import ast
import inspect
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.nexmark.generator import KINDS, Events, side_input
from tests.kit.sampling import turn_of
from tests.nexmark.page import PAGE, page
from tests.nexmark.playing import MODULES, NAMES, Play, prepare
from tests.nexmark.reference import REFERENCE, Reference
from tidegate.testing import points_reached

EVENTS = Events(count=4_000, seed=3, rate=40, late=0.02)
CUTS = 3
SPLIT = ("whole", "parts")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    landing = tmp_path_factory.mktemp("nexmark")
    EVENTS.write(landing, CUTS)
    made = Reference(landing, CUTS)
    made.side_input(side_input())
    return made


@pytest.mark.parametrize("name", turn_of(NAMES, 8))
def test_a_query_gives_what_duckdb_does_though_a_checkpoint_crashes(name, reference, tmp_path, spark):
    play = Play(name, tmp_path)
    prepare(tmp_path, reference.landing)
    with play.opened(spark) as running:
        with points_reached() as points:
            running.checkpoint()
        running.crash_at(random.Random(name).choice(sorted(set(points))))
        running.until_idle()
        assert play.differs(running, reference) == ""
    assert reference.count(name) > 0


def test_each_query_has_a_reference_and_at_most_twelve_lines():
    """Counted with all that it shares with others, without blank lines and texts that say what it does."""
    assert sorted(REFERENCE) == sorted(NAMES) == sorted(f"q{number}" for number in range(23))
    for module in MODULES:
        parts = parts_of(module)
        for name in parts.keys() & {*NAMES}:
            assert sum(len(parts[part]) for part in used(name, parts)) <= 12, name


def parts_of(module):
    """The module's functions and constants, as they are written, without what says what they do."""
    lines = inspect.getsource(module).splitlines()
    parts = {}
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.FunctionDef):
            text, *_ = node.body
            assert ast.get_docstring(node), node.name
            first = min(each.lineno for each in (*node.decorator_list, node))
            parts[node.name] = [*lines[first - 1 : text.lineno - 1], *lines[text.end_lineno : node.end_lineno]]
        elif isinstance(node, ast.Assign):
            parts[node.targets[0].id] = lines[node.lineno - 1 : node.end_lineno]
    return {name: [line for line in part if line.strip()] for name, part in parts.items()}


def used(name, parts):
    """What a part is made of: itself, and what it names."""
    found, waiting = set(), [name]
    while waiting:
        part = waiting.pop()
        if part not in found:
            found.add(part)
            waiting += [other for other in parts if re.search(rf"\b{other}\b", "\n".join(parts[part]))]
    return found


def test_a_cut_may_be_several_files(tmp_path):
    EVENTS.write(tmp_path / "whole", 2)
    EVENTS.write(tmp_path / "parts", 2, parts=3)
    for file in (tmp_path / "whole").glob("*/*.parquet"):
        parts = sorted((tmp_path / "parts" / file.parent.name).glob(f"{file.stem}-*.parquet"))
        assert len(parts) == 3
        assert pa.concat_tables(map(pq.read_table, parts)) == pq.read_table(file)
    made = [
        Reference(tmp_path / name, 2).arrow("SELECT cut, count(*) FROM bid GROUP BY 1 ORDER BY 1") for name in SPLIT
    ]
    assert made[0] == made[1]


def test_the_events_are_the_same_however_they_are_cut():
    whole, cut = next(EVENTS.cut(1)), list(EVENTS.cut(7))
    for kind in KINDS:
        parts = [rows for tables in cut for rows in tables[kind].to_pylist()]
        assert parts == whole[kind].to_pylist()
    assert [sum(table.num_rows for table in whole.values())] == [EVENTS.count]
    assert whole["bid"].num_rows == EVENTS.count * 46 // 50


def test_the_reference_tells_late_bids_from_others(reference: Reference):
    """Otherwise the comparison would prove nothing of them."""
    late = reference.rows("SELECT * FROM bid WHERE date_time + INTERVAL 10 SECOND < before")
    assert len(late) > 10
    few = next(EVENTS.cut(1))["bid"].slice(0, 9)
    assert "missing" in reference.differs("q0", few)


def test_the_guide_shows_the_queries_as_they_are():
    """Else: python -m tests.nexmark.page writes them there."""
    assert PAGE.read_text() == page()
