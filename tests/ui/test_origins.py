"""The file and the line that a value has come from: found where it stands, and never guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.api_answers import check_answer
from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Ack, Hold, JobStats, Payload, Range, Verdict

RULES = {"positive": ("amount", "-5.0"), "known": ("customer", "nobody"), "made by a stage": ("total", "7")}


@pytest.fixture
def judged(world: ToyWorld, tmp_path: Path) -> int:
    """A checkpoint that a gate holds, of these files."""
    files = {
        "1.json": '{"amount": 3, "customer": "mia"}\nno json\n\n{"amount": -5.00, "customer": "tom"}\n',
        "2.csv": 'amount,customer\n9,"two\nlines"\n7,nobody\n-5,nobody\n',
        "3.parquet": "nothing that could be read as lines",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    splits = {"folder": str(tmp_path), "files": [{"name": name, "size": 1} for name in [*files, "gone.json"]]}
    ledger = world.ledger
    ledger.start()
    known = world.checkpoint("airflow:orders:like it", rows=1)
    plan = ledger.plan(known)
    assert plan is not None
    source = Range(kind="files", start=None, end=None, splits=Payload(data=splits), empty=False)
    id = ledger.view().last_id + 1
    made = msgspec.structs.replace(plan, **stamp(seams.new_id()), id=id, run="airflow:orders:judged", base=known,
                                   sources={"in": source})  # fmt: skip
    assert ledger.create_entry(made).is_new
    results = [
        {"expectation_config": {"id": rule, "type": "x", "kwargs": {"column": column}}, "success": False,
         "result": {"partial_unexpected_list": [value, "another"]}}
        for rule, (column, value) in RULES.items()
    ]  # fmt: skip
    verdict = Verdict(
        outcome="hold", rows=4, quarantined=0, why="x", broken=[], policy={}, hold=Hold(limit_s=None, default="reject"),
        results=Payload(data={"results": results}),
    )  # fmt: skip
    stats = JobStats(seconds={}, rows={}, bytes={}, files={}, watermarks={}, idle=[], counts={})
    ledger.create_ack(
        Ack(**stamp(seams.new_id()), id=id, job="main", prev=None, sinks={}, gates={"enough": verdict}, stats=stats)
    )
    return id


@pytest.fixture
def findings(client: Any, tokens: dict[str, str], world: ToyWorld, judged: int) -> Any:
    from tidegate.ui.answers import Findings

    def ask() -> Any:
        client.cookies.clear()
        client.cookies.set("_token", tokens["viewer"])
        answer = client.get(f"/tidegate/api/v1/dags/orders/checkpoints/{judged}/gates/enough")
        assert answer.status_code == 200, answer.text
        check_answer(answer.content, Findings)
        return answer.json()

    yield ask
    world.coordinator().abort(judged, "CANCELLED", "by hand")


def test_the_first_row_with_the_value_is_found_in_lines_of_json_and_in_csv(findings: Any, tmp_path: Path):
    told = findings()
    assert {rule["rule"]: (rule["file"], rule["line"]) for rule in told["rules"]} == {
        "positive": (str(tmp_path / "1.json"), 4),
        "known": (str(tmp_path / "2.csv"), 4),
        "made by a stage": (None, None),
    }
    assert (told["files"], told["file_count"]) == (["1.json", "2.csv", "3.parquet", "gone.json"], 4)


def test_it_is_looked_for_once_and_not_for_long(findings: Any, monkeypatch: pytest.MonkeyPatch):
    from tidegate.ui.rows import origins

    monkeypatch.setattr(origins, "MAX_SEARCH_S", -1.0)
    assert {rule["file"] for rule in findings()["rules"]} == {None}
    monkeypatch.setattr(origins, "MAX_SEARCH_S", 60.0)
    monkeypatch.setattr(origins, "_search", lambda *_: pytest.fail("it was looked for before"))
    findings()


def test_a_large_file_is_not_read(findings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The smallest one is larger by a byte."""
    from tidegate.ui.rows import origins

    monkeypatch.setattr(origins, "_MAX_BYTES", (tmp_path / "2.csv").stat().st_size - 1)
    assert {rule["file"] for rule in findings()["rules"]} == {None}
