"""suspend and resume: what they say, and how the other commands tell of them."""

import pytest


@pytest.fixture
def failing(project):
    """1 completed, 2 failed: with tolerable_failed_checkpoints = 0 that suspends."""
    project.complete(1, None)
    project.plan(2, 1)
    project.abort(2, detail="a stage failed")
    return project


def test_a_pipeline_is_suspended_and_resumed_and_the_log_tells_by_whom_and_why(project, tidegate):
    project.complete(1, None)
    said = tidegate("suspend", "orders", "--reason", "the feed is broken", "--json")
    assert (said.code, said.json) == (0, {"pipeline": "orders", "entry": 2, "suspended": True})
    assert tidegate("list", "--json").json["pipelines"][0]["state"] == "suspended"
    assert "the feed is broken" in tidegate("explain", "orders", "2").out
    assert "no more checkpoints are planned" in tidegate("explain", "orders", "2").out
    assert tidegate("resume", "orders").code == 0
    rows = tidegate("list", "orders", "--json").json["checkpoints"]
    assert [(row["id"], row["state"]) for row in rows] == [(3, "resumed"), (2, "suspended"), (1, "completed")]
    assert rows[1]["reason"] == "the feed is broken"
    assert tidegate("show", "orders", "3", "--json").json["kind"] == "control"
    findings = tidegate("doctor", "orders", "--json").json["findings"]
    assert [found["state"] for found in findings if found["check"] == "ledger"] == ["ok"]


def test_failures_suspend_and_resuming_forgets_them(failing, tidegate):
    assert tidegate("list", "--json").json["pipelines"][0]["state"] == "suspended"
    assert tidegate("resume", "orders", "--json").json["suspended"] is False
    assert tidegate("list", "--json").json["pipelines"][0]["state"] == "resumed"


def test_there_is_nothing_to_resume_from(project, tidegate):
    project.complete(1, None)
    said = tidegate("resume", "orders", "--json")
    assert said.code == 1
    assert said.json["error"]["reason"] == "NOT_SUSPENDED"
    assert project.ledger.ids() == [1]


def test_what_nobody_has_rejected_is_not_set_aside(project, tidegate):
    tidegate("suspend", "orders")
    said = tidegate("resume", "orders", "--quarantine-all", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "NOT_REJECTED")
    assert tidegate("list", "--json").json["pipelines"][0]["state"] == "suspended"


@pytest.mark.parametrize("command", ["suspend", "resume"])
def test_a_pipeline_that_does_not_exist_is_refused(folder, tidegate, command):
    said = tidegate(command, "nowhere", "--json")
    assert said.code == 2
    assert said.json["error"]["reason"] == "NO_SUCH_PIPELINE"


def test_a_user_without_a_name_may_suspend_too(project, tidegate, monkeypatch):
    """As in a container that runs under a number."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 50000")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert tidegate("suspend", "orders").code == 0
    assert " user " in tidegate("explain", "orders", "1").out
