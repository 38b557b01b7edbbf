"""watch and summary: what is in flight as it continues, and what all checkpoints were like."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest

from tests.kit.shop import Shop
from tidegate import seams
from tidegate.cli import main as cli
from tidegate.cli.output import Output
from tidegate.errors import Unavailable
from tidegate.ledger import LocalStore
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Ack, Hold, JobStats, Payload, Verdict


@pytest.fixture
def shop(folder, tidegate):
    shop = Shop(folder)
    for _ in range(3):
        shop.checkpoint()
    return shop


def watched(tidegate, *steps, arguments=()):
    """What is printed while each step is taken in a pause, until Ctrl-C; split into frames."""
    todo = list(steps)

    def sleep(seconds):
        if not todo:
            raise KeyboardInterrupt
        todo.pop(0)()

    with seams.installed(seams.Seams(sleep=sleep)):
        said = tidegate("watch", "orders", *arguments)
    assert said.code == 0, said.err
    return said.out


def hold(shop, plan):
    verdict = Verdict(
        outcome="hold",
        rows=9,
        quarantined=0,
        hold=Hold(limit_s=None, default="reject"),
        broken=[],
        policy={},
        results=Payload(data={}),
    )
    ack = Ack(
        **stamp(f"{plan.attempt}-1"),
        id=plan.id,
        job="main",
        prev=None,
        sinks={},
        gates={"big\x1b[31m": verdict},
        stats=JobStats(started=plan.created, seconds={"read": 1.0}, rows={"good": 1234}),
    )
    shop.coordinator.ledger.create_ack(ack)


def test_once_it_tells_counts_and_the_last_ones(shop, tidegate):
    said = tidegate("watch", "orders", "--once", "--last", "2")
    lines = said.out.splitlines()
    assert lines[0] == "Pipeline orders is well: checkpoint 3 is completed"
    assert lines[1] == "triggered 3  completed 3  failed 0  in progress 0  held 0  rollbacks 0"
    assert lines[2].startswith("durations  ")
    assert [line.split()[0] for line in lines[4:]] == ["id", "3", "2"]
    found = tidegate("watch", "orders", "--json").json
    assert (found["state"], found["counts"]["completed"], len(found["durations"])) == ("well", 3, 3)
    assert [row["id"] for row in found["latest"]] == [3, 2, 1]


def test_acks_are_seen_as_they_arrive(shop, tidegate):
    plans = []
    out = watched(tidegate, lambda: plans.append(shop.trigger()), lambda: hold(shop, plans[0]), lambda: None)
    quiet, planned, held = out.split("\nPipeline ")
    assert "in flight" not in quiet
    assert "in flight: checkpoint 4 (manual), planned" in planned
    assert "· job main: no ack yet" in planned
    assert "✓ job main: acked after" in held
    assert "begun after 0.0 s: good 1,234" in held
    assert "! held by gate big\\x1b[31m" in held, "what comes from outside moves no terminal"
    assert "tidegate approve orders 4" in held


def test_a_frame_is_printed_again_only_if_something_has_changed(shop, tidegate):
    out = watched(tidegate, *[lambda: None] * 5)
    assert out.count("Pipeline orders is well") == 1


def test_a_storage_that_does_not_answer_is_waited_for(shop, tidegate, monkeypatch):
    real = LocalStore.names

    def gone(*_, **__):
        raise Unavailable("the mount is gone")

    out = watched(
        tidegate,
        lambda: monkeypatch.setattr(LocalStore, "names", gone),
        lambda: monkeypatch.setattr(LocalStore, "names", real),
        lambda: None,
    )
    assert "the mount is gone\nTrying again." in out
    assert out.count("Pipeline orders is well") == 2


def test_on_a_terminal_it_is_redrawn(shop, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(cli, "Output", lambda out, err, json: Output(screen, err, json=json))
    monkeypatch.setenv("TERM", "xterm")
    todo = [shop.trigger]

    def sleep(seconds):
        assert seconds == 0.5
        if not todo:
            raise KeyboardInterrupt
        todo.pop(0)()

    with seams.installed(seams.Seams(sleep=sleep)):
        assert cli.main(["watch", "orders", "--every", "500 ms"]) == 0
    drawn = screen.getvalue()
    assert "\x1b[2K" in drawn, "the first frame is drawn over"
    assert "in flight: checkpoint 4" in drawn
    assert "every 0.5 s; Ctrl-C ends it" in drawn


def test_a_process_that_is_gone_is_told(project, tidegate):
    import socket

    project.plan(1, None, run=f"process:{socket.gethostname()}:999999999:1:abc")
    out = tidegate("watch", "orders", "--once").out
    assert "no ack yet, and its process is gone" in out
    assert "run the pipeline again" in out


# -- summary -----------------------------------------------------------------------------------------------


def test_a_summary_is_of_the_whole_history(long_ago, tidegate):
    assert len(long_ago.ledger.ids()) < 10
    found = tidegate("summary", "orders", "--json").json
    assert (found["counts"]["triggered"], found["counts"]["completed"], found["counts"]["failed"]) == (10, 7, 3)
    assert found["summary"]["rows_out"]["count"] == 7
    assert found["failures"] == [
        {"reason": "JOB_FAILED", "count": 2, "last_checkpoint": 8},
        {"reason": "CANCELLED", "count": 1, "last_checkpoint": 2},
    ]
    out = tidegate("summary", "orders").out
    assert "Ever: 10 triggered, 7 completed, 3 failed" in out
    assert "rows out" in out
    assert "tidegate explain orders 8" in out


def test_a_summary_of_a_time(long_ago, tidegate):
    assert tidegate("summary", "orders", "--until", "2020-01-01", "--json").json["summary"]["rows_out"] is None
    soon = (seams.now() + timedelta(hours=1)).isoformat()
    assert (
        tidegate("summary", "orders", "--since", "1 h", "--until", soon, "--json").json["summary"]["rows_out"]["count"]
        == 7
    )
    assert tidegate("summary", "orders", "--since", "yesterday").code == 2
