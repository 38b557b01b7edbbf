"""Rows of a table on the pages: some as of a checkpoint, exactly as it stood, or those that differ between two.

And rows that a gate has set aside at a checkpoint, or that something has let through. Never much of it, and only for
who may see values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.api_answers import check_answer
from tests.kit.toy_world import ToyWorld
from tests.ui.browser import Browser
from tests.ui.known_dags import put_table
from tidegate.delta import Location, open_table
from tidegate.errors import Invalid
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.history.table import remember
from tidegate.ledger.ledger import stamp
from tidegate.records.codec import encode
from tidegate.records.records import SampledRows, Samples


@pytest.fixture
def table(app: Any, tmp_path: Path) -> str:
    """Two versions, in partitions."""
    import pyarrow as pa
    from deltalake import write_deltalake

    path = str(tmp_path / "table")
    for version in range(2):
        rows = {"day": ["a", "b", "b"], "id": [n + 10 * version for n in range(3)], "text": ["x" * 999, None, "y"]}
        write_deltalake(path, pa.table(rows), partition_by=["day"], mode="append")
    return path


def test_rows_are_those_of_the_version_with_the_columns_of_their_partition(table: str, monkeypatch: pytest.MonkeyPatch):
    from tidegate.ui.rows import table_samples
    from tidegate.ui.rows.table_samples import _first

    then = open_table(Location(table), 0)
    assert then is not None
    found = sorted(_first(then, "a", 10), key=lambda row: row["id"])
    assert [(row["id"], row["day"]) for row in found] == [(0, "a"), (1, "b"), (2, "b")]
    opened: list[str] = []
    keep = table_samples.open_parquet
    monkeypatch.setattr(table_samples, "open_parquet", lambda at, path: opened.append(path) or keep(at, path))
    assert len(_first(then, "a", 1)) == 1
    assert len(opened) == 1, "no file is opened for nothing"


def test_a_table_of_too_many_files_is_not_looked_at(table: str, monkeypatch: pytest.MonkeyPatch):
    from tidegate.ui.rows import table_samples

    now = open_table(Location(table), 1)
    assert now is not None
    monkeypatch.setattr(table_samples, "_MAX_FILES", 3)
    with pytest.raises(Invalid, match="4 files") as refused:
        table_samples._first(now, "a", 10)
    assert refused.value.reason == "TOO_MANY_FILES"


def test_what_is_not_published_or_has_no_versions_says_so(client: Any, tokens: dict[str, str], world: Any):
    id = world.checkpoint("airflow:orders:rows", rows=2)
    client.cookies.clear()
    client.cookies.set("_token", tokens["viewer"])
    at = f"/tidegate/api/v1/dags/orders/checkpoints/{id}/tables"
    assert client.get(f"{at}/nobody").status_code == 404
    assert client.get("/tidegate/api/v1/dags/orders/checkpoints/99999/tables/a").status_code in (404, 409)


API = "/tidegate/api/v1/dags/orders/checkpoints"


@pytest.fixture(scope="module")
def ids(world: ToyWorld, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Two checkpoints of a table with keys: customer 1 has paid more, 2 has gone, 3 has come."""
    import pyarrow as pa
    from deltalake import write_deltalake

    folder = tmp_path_factory.mktemp("tables") / "paid"
    made = [world.checkpoint(f"airflow:orders:paid {n}", rows=1) for n in range(2)]
    for version, rows in enumerate([{"id": [1, 2], "paid": ["9.50", "1"]}, {"id": [1, 3], "paid": ["12.00", None]}]):
        write_deltalake(str(folder), pa.table(rows), mode="overwrite")
        put_table(world, made[version], "b", folder, version)
    return made


def as_viewer(client: Any, tokens: dict[str, str], path: str) -> Any:
    client.cookies.clear()
    client.cookies.set("_token", tokens["viewer"])
    return client.get(f"{API}/{path}")


def test_a_table_differs_between_two_checkpoints_by_its_key(client: Any, tokens: dict[str, str], ids: list[int]):
    from tidegate.ui.answers import TableChanges, TableRows

    first, last = ids
    answer = as_viewer(client, tokens, f"{last}/tables/b/changes?since={first}")
    told = answer.json()
    check_answer(answer.content, TableChanges)
    assert answer.headers["cache-control"] == "no-store", "rows are kept nowhere"
    assert (told["keys"], told["added"], told["removed"], told["changed"]) == (["id"], 1, 1, 1)
    assert [(row["before"], row["after"]) for row in told["rows"]] == [
        ({"id": "1", "paid": "9.50"}, {"id": "1", "paid": "12.00"}),
        ({"id": "2", "paid": "1"}, None),
        (None, {"id": "3", "paid": None}),
    ]
    back = as_viewer(client, tokens, f"{first}/tables/b/changes?since={last}&limit=1").json()
    assert (back["added"], back["removed"], back["changed"], len(back["rows"])) == (1, 1, 1, 1)
    for id, paid in ((first, {"1": "9.50", "2": "1"}), (last, {"1": "12.00", "3": None})):
        then = as_viewer(client, tokens, f"{id}/tables/b")
        check_answer(then.content, TableRows)
        assert {row["id"]: row["paid"] for row in then.json()["rows"]} == paid


def test_tables_that_cannot_be_compared_say_why(client: Any, tokens: dict[str, str], ids: list[int], world: ToyWorld):
    first, last = ids
    moved = world.checkpoint("airflow:orders:moved", rows=1)
    assert (
        as_viewer(client, tokens, f"{moved}/tables/b/changes?since={last}").json()["error"]["reason"] == "OTHER_TABLE"
    )
    assert as_viewer(client, tokens, f"{last}/tables/no/changes?since={first}").status_code == 404
    assert as_viewer(client, tokens, f"{last}/tables/b/changes?since=9999").status_code == 404
    gone = as_viewer(client, tokens, f"{moved}/tables/b")
    assert (gone.status_code, gone.json()["error"]["reason"]) == (503, "TABLE_DAMAGED"), "the toy's table is not there"


def test_what_differs_is_shown_in_the_page(served: str, tokens: dict[str, str], ids: list[int]):
    first, last = ids
    with Browser() as browser:
        page = browser.page()
        page.cookie(served, "_token", tokens["viewer"])
        page.goto(f"{served}/tidegate/dag/orders#/compare?before={first}&after={last}")
        shown = f"[data-key='changes {first} {last} b']"
        page.click(f"{shown} button")
        page.has("1 row added, 1 removed, 1 changed, by id.", shown)
        assert page.text(f"{shown} tbody").split() == [
            "changed",
            "1",
            "9.50",
            "12.00",
            "removed",
            "2",
            "1",
            "added",
            "3",
            "null",
        ]
        page.goto(f"{served}/tidegate/dag/orders?again#/checkpoint/{last}")
        page.click(f"{shown} button")
        page.has("by id", shown)
        assert page.wrong == []


@pytest.fixture
def aside(world: ToyWorld, ids: list[int]) -> None:
    """Rows of two checkpoints in quarantine; some of them have been settled since."""
    import pyarrow as pa
    from deltalake import write_deltalake

    count = 4
    own = {
        q.ID: [f"{n:032x}" for n in range(count)],
        q.CHECKPOINT: [ids[0], ids[1], ids[1], ids[1]],
        q.STREAM: ["in"] * count,
        q.RULES: [["positive"]] * count,
        q.SETTLED: [None, None, "released", "discarded"],
        q.SETTLED_IN: pa.array([None, None, 9, 9], pa.int64()),
        q.SETTLED_BY: pa.nulls(count, pa.string()),
    }
    path = QuarantineSink("enough").path(world.ledger.home)
    write_deltalake(path, pa.table(own | {"amount": [-1, -2, -3, -4]}), mode="overwrite", schema_mode="overwrite")


def test_what_a_gate_set_aside_at_a_checkpoint_is_told_with_its_fate(
    client: Any, tokens: dict[str, str], ids: list[int], aside: None
):
    from tidegate.ui.answers import QuarantinedRowsAt

    answer = as_viewer(client, tokens, f"{ids[1]}/quarantined/enough")
    check_answer(answer.content, QuarantinedRowsAt)
    told = [(row["values"]["amount"], row["status"], row["rules"]) for row in answer.json()["rows"]]
    assert told == [(f"-{n}", fate, ["positive"]) for n, fate in ((2, "waiting"), (3, "released"), (4, "discarded"))]
    assert len(as_viewer(client, tokens, f"{ids[1]}/quarantined/enough?limit=2").json()["rows"]) == 2
    assert as_viewer(client, tokens, f"{ids[1]}/quarantined/no").status_code == 404


def let_through(world: ToyWorld, run: str, streams: dict[str, SampledRows]) -> int:
    """A checkpoint that has kept these samples, as if its plan had asked for some."""
    id = world.checkpoint(run, rows=2)
    entry = world.ledger.entry(id)
    assert entry is not None
    config = entry.plan.config | {"sample_rows": 20}
    world.path(id, "plan.json").write_bytes(encode(msgspec.structs.replace(entry.plan, config=config)))
    samples = Samples(**stamp(entry.acks["main"].ack.attempt), id=id, job="main", streams=streams)
    world.ledger.put_samples(samples)
    return id


@pytest.fixture(scope="module")
def sampled(world: ToyWorld) -> int:
    passed = SampledRows(
        columns=["order_id", "note"], rows=[["81", "<b>bold</b>"], ["82", None]], hidden=["email"], left_out=3
    )
    streams = {
        "enough": passed,
        "split.low": SampledRows(columns=["a"]),
        "split.high": SampledRows(problem="it took too long"),
    }
    id = let_through(world, "airflow:orders:sampled", streams)
    remember(world.ledger, {})
    return id


def test_what_a_part_let_through_is_told_by_stream(client: Any, tokens: dict[str, str], world: ToyWorld, sampled: int):
    from tidegate.ui.answers import Checkpoint, PartSamples

    answer = as_viewer(client, tokens, f"{sampled}/samples/enough")
    check_answer(answer.content, PartSamples)
    assert answer.headers["cache-control"] == "no-store", "rows are kept nowhere"
    told = answer.json()["streams"]
    assert [(each["stream"], each["hidden"], each["left_out"]) for each in told] == [("enough", ["email"], 3)]
    assert told[0]["rows"] == [{"order_id": "81", "note": "<b>bold</b>"}, {"order_id": "82", "note": None}]
    both = as_viewer(client, tokens, f"{sampled}/samples/split").json()["streams"]
    assert {each["stream"]: each["problem"] for each in both} == {"split.low": "", "split.high": "it took too long"}
    whole = as_viewer(client, tokens, f"{sampled}")
    check_answer(whole.content, Checkpoint)
    assert whole.json()["sampled_parts"] == ["enough", "split"]


def test_where_there_is_no_sample_it_says_how_to_have_one(
    client: Any, tokens: dict[str, str], world: ToyWorld, ids: list[int], sampled: int
):
    for path in (f"{sampled}/samples/nobody", f"{ids[0]}/samples/enough"):
        answer = as_viewer(client, tokens, path)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (409, "NO_SAMPLE")
        assert "sample_rows" in answer.json()["error"]["help"]
    assert as_viewer(client, tokens, "99999/samples/enough").status_code == 404
    other = let_through(world, "airflow:orders:overtaken samples", {"enough": SampledRows(columns=["a"], rows=[["1"]])})
    samples = world.ledger.samples(other, "main")
    assert samples is not None
    world.ledger.put_samples(msgspec.structs.replace(samples, attempt="another"))
    late = as_viewer(client, tokens, f"{other}/samples/enough")
    assert late.json()["error"]["reason"] == "NO_SAMPLE", "it is of an attempt that does not count"
    world.path(other, "samples/main.json").write_text("{")
    assert as_viewer(client, tokens, f"{other}/samples/enough").json()["error"]["reason"] == "NO_SAMPLE"
    assert as_viewer(client, tokens, str(other)).json()["sampled_parts"] == []
