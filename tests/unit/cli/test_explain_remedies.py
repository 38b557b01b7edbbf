"""A newcomer's walk: a pipeline breaks, and the first command, `tidegate explain NAME`, tells cause and remedy.

What breaks is broken for real, as far as that goes without Spark: each story ends with the pipeline mended as told.
"""

from __future__ import annotations

import os
import socket
import sys

import pytest

from tests.kit.shop import Shop
from tidegate import seams
from tidegate.history import health
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Ack, JobStats, Payload, RecordedRule, Verdict

CODE = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("orders")
events = pipeline.source("events", Files("landing/*.json", schema="k long, v string"))
events.sink("good", DeltaAppend("tables/good"))
events.aggregate(by="k", n="count(*)", uid="totals").sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
"""


@pytest.fixture
def shop(folder, tidegate):
    """One checkpoint of a folder with one file."""
    (folder / "landing").mkdir()
    (folder / "landing" / "one.json").write_text('{"k": 1, "v": "a"}\n')
    shop = Shop(folder, CODE)
    shop.folder = folder
    shop.checkpoint()
    return shop


@pytest.fixture(autouse=True)
def at_once():
    """Nobody waits before trying again."""
    with seams.installed(seams.Seams(sleep=lambda _: None)):
        yield


def explained(tidegate, state, reason):
    """What the first command says: (cause, all remedies)."""
    said = tidegate("explain", "orders", "--json")
    assert (said.code, said.json["state"], said.json["reason"]) == (0, state, reason)
    lines = tidegate("explain", "orders").out.splitlines()
    assert lines[0] == said.json["summary"]
    assert lines[1] == f"  Cause:  {said.json['cause']}"
    assert lines[2].startswith("  Do:     ")
    return said.json["cause"], " / ".join(said.json["remedy"])


def is_well(tidegate):
    found = tidegate("explain", "orders", "--json").json
    assert (found["state"], found["remedy"]) == ("well", [])


def run(tidegate):
    return tidegate("run", "shop:pipeline", "--checkpoints", "1")


def test_bad_rows(shop, tidegate):
    """More rows break the gate's rules than it may set aside."""
    plan = shop.trigger()
    rule = "expect_column_values_to_be_in_set(country)"
    broken = RecordedRule(rule=rule, policy="quarantine", severity="critical", rows=200, why="200 of 200 rows break it")
    results = {
        "results": [
            {
                "success": False,
                "expectation_config": {"id": rule},
                "result": {"partial_unexpected_list": ["XX", "XX", "YY"]},
            }
        ]
    }
    verdict = Verdict(
        outcome="abort",
        rows=200,
        quarantined=200,
        why="200 of 200 rows are bad, at most 0.2 may be",
        broken=[broken],
        policy={},
        results=Payload(data=results),
    )
    ack = Ack(
        **stamp(f"{plan.attempt}-1"),
        id=2,
        job="main",
        prev=None,
        sinks={},
        gates={"checked": verdict},
        stats=JobStats(),
    )
    shop.coordinator.ledger.create_ack(ack)
    assert shop.coordinator.complete(2).reason == "GATE_FAILED"

    cause, remedy = explained(tidegate, "suspended", "GATE_FAILED")
    assert "ate 'checked': 200 of 200 rows are bad, at most 0.2 may be" in cause
    assert f"({rule}: 200 of 200 rows break it)" in cause
    assert "correct the writer of the source, or the gate's rules and limits" in remedy
    assert "tidegate resume orders" in remedy
    assert "for example 'XX', 'YY'" in tidegate("explain", "orders").out
    assert "for example 'XX', 'YY'" in tidegate("show", "orders", "2").out

    assert tidegate("resume", "orders").code == 0
    shop.checkpoint()
    is_well(tidegate)


def test_a_missing_file(shop, tidegate):
    """It was planned, and is gone when the job wants to read it."""
    (shop.folder / "landing" / "two.json").write_text('{"k": 2, "v": "b"}\n')
    plan = shop.trigger()
    (shop.folder / "landing" / "two.json").unlink()
    sourcing = shop.coordinator.graph.sources["events"]
    from tidegate.connectors.source import SourceContext

    ledger = shop.coordinator.ledger
    context = SourceContext("orders", "events", shop.coordinator.place, ledger)
    with pytest.raises(Exception, match="two.json") as caught:
        sourcing.source.verify(ledger.unpack(plan.sources["events"].splits), context)
    shop.coordinator.complete(2, ("JOB_FAILED", str(caught.value)))

    cause, remedy = explained(tidegate, "suspended", "JOB_FAILED")
    assert "two.json" in cause
    assert "restore them and try again" in remedy
    assert "tidegate resume orders" in remedy


def test_a_file_that_the_order_of_names_has_passed_by(folder, tidegate):
    """Nothing fails: it is only never read. Everyone who asks is told, until it is read or gone."""
    (folder / "landing").mkdir()
    (folder / "landing" / "two.json").write_text('{"k": 1, "v": "a"}\n')
    shop = Shop(folder, CODE.replace("v string", 'v string", order="name'))
    shop.checkpoint()
    is_well(tidegate)
    (folder / "landing" / "one.json").write_text('{"k": 2, "v": "b"}\n')
    plan = shop.trigger(only_if_new=True)
    assert plan.sources["events"].empty
    shop.checkpoint_of(plan)
    assert shop.coordinator.trigger("again", only_if_new=True) is None, "it is told once, not for ever"

    cause, remedy = explained(tidegate, "skipping", "INPUT_SKIPPED")
    assert "ource events: 1 file has a name below the last one that was read, 'two.json'" in cause
    assert "'one.json'" in cause
    assert 'set order="arrival"' in remedy
    found = tidegate("doctor", "orders", "--json")
    assert found.code == 1
    assert [each["detail"] for each in found.json["findings"] if each["state"] == "bad"] == [cause_of(plan)]
    told = tidegate("metrics", "orders").out
    assert 'tidegate_neverRead{pipeline="orders",source="events"} 1' in told

    (folder / "landing" / "one.json").rename(folder / "one.json")
    shop.checkpoint()
    is_well(tidegate)


def cause_of(plan):
    return plan.sources["events"].unread.what


def test_a_missing_folder(shop, tidegate):
    """Nothing can be planned, so no checkpoint tells of it. Mended, it is told no longer."""
    (shop.folder / "landing").rename(shop.folder / "elsewhere")
    assert run(tidegate).code == 3
    cause, remedy = explained(tidegate, "troubled", "NO_FOLDER")
    assert f"folder {shop.folder}/landing no longer exists" in cause
    assert "restore it" in remedy

    (shop.folder / "elsewhere").rename(shop.folder / "landing")
    shop.checkpoint()
    is_well(tidegate)


def test_a_killed_worker(project, tidegate):
    """kill -9: it leaves an open checkpoint, and no word."""
    project.complete(1, None)
    project.plan(2, 1, run=f"process:{socket.gethostname()}:999999999:1:abc")
    cause, remedy = explained(tidegate, "orphaned", "RUN_GONE")
    assert "The process that made it has died; job main has not acknowledged it" in cause
    assert "lack of memory" in cause
    assert "run the pipeline again" in remedy
    assert "spark.memory" in remedy


def test_a_killed_worker_under_airflow(project, tidegate):
    """Its tries are over, and `complete` has found that it left no word."""
    project.complete(1, None)
    project.plan(2, 1, run="airflow:orders:scheduled__2026-03-01")
    project.abort(2, detail="task job_main is failed, without a message: its process was killed; see its log")
    cause, remedy = explained(tidegate, "suspended", "JOB_FAILED")
    assert "without a message: its process was killed" in cause
    assert "spark.memory" in remedy
    assert "tidegate resume orders" in remedy


def test_a_full_disk(shop, tidegate, monkeypatch):
    """Nothing can be written, so nobody can leave word of it either: the disk itself is asked."""
    real = os.statvfs(shop.folder)
    full = os.statvfs_result((*real[:3], 0, 0, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda folder: full)
    cause, remedy = explained(tidegate, "disk full", "DISK_FULL")
    assert f"The disk that holds {shop.folder}/ledger" in cause
    assert "make room" in remedy
    said = tidegate("doctor", "--json")
    assert [each["state"] for each in said.json["findings"] if each["check"] == "space"] == ["bad", "bad"]
    monkeypatch.setattr(os, "statvfs", lambda folder: real)
    is_well(tidegate)


def test_a_disk_that_is_nearly_full_is_told_before_it_is(shop, monkeypatch):
    real = os.statvfs(shop.folder)
    blocks = health.SPARE_BYTES // real.f_frsize
    for free, full in ((blocks - 1, ("here",)), (blocks, ())):
        found = os.statvfs_result((*real[:3], free, free, *real[5:]))
        monkeypatch.setattr(os, "statvfs", lambda folder, found=found: found)
        settings = type("Limits", (), {"tolerable_failed_checkpoints": 0, "root": "here", "data": "s3://there"})
        assert health.observe(shop.coordinator.ledger, settings, lambda plan: None).full == full


def test_an_incompatible_change(shop, tidegate):
    """The code means something else by what its operator remembers."""
    (shop.folder / "shop.py").write_text(CODE.replace('n="count(*)"', 'n="sum(k)"'))
    sys.modules.pop("shop", None)
    assert run(tidegate).code == 2
    cause, remedy = explained(tidegate, "troubled", "STATE_CHANGED")
    assert "aggregate 'totals': n is sum(k), and was count(*)" in cause
    assert "revert the change; or give a changed result another name" in remedy

    (shop.folder / "shop.py").write_text(CODE)
    sys.modules.pop("shop", None)
    shop.checkpoint()
    is_well(tidegate)
