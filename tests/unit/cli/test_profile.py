"""profile: where the time of a checkpoint went, step by step; `show` has the same figures of its steps."""

import pytest

from tidegate.records.records import SparkWork, StepStats

WORK = SparkWork(
    queries=4,
    query_s=1.5,
    analyses=11,
    analysis_s=0.25,
    planning_s=0.5,
    jobs=5,
    stages=6,
    tasks=9,
    running_s=0.75,
    task_s=1.2,
)
NONE = SparkWork(queries=0, query_s=0.0, analyses=0, analysis_s=0.0)
STEPS = [
    StepStats(name="read", after_s=0.0, seconds=0.1, spark=NONE),
    StepStats(name="state totals", after_s=0.1, seconds=2.0, spark=WORK),
]


@pytest.fixture
def measured(project):
    """Checkpoint 1 as an earlier version left it, 2 aborted, 3 with all figures."""
    project.complete(1, None)
    project.plan(2, 1)
    project.abort(2)
    plan = project.plan(3, 1)
    project.decide(plan, project.ack(3, started=plan.created, steps=STEPS, between_steps=NONE))
    project.publish(3)
    return project


def test_the_last_completed_checkpoint_is_drawn_as_a_tree(measured, tidegate):
    said = tidegate("profile", "orders")
    assert said.code == 0
    names = [line.split("  ")[0] for line in (text.strip() for text in said.out.splitlines())]
    assert names[:6] == [
        "Checkpoint 3 of orders: completed",
        "span",
        "checkpoint 3",
        "job main",
        "read",
        "state totals",
    ]
    assert names[-2:] == ["deciding", "publishing"]
    step = next(line for line in said.out.splitlines() if "state totals" in line)
    assert "█" in step, "it takes most of the time"
    figures = "4 1.50 s 0.50 s 0.75 s 11 0.25 s 5 6 9 1.20 s"
    assert " ".join(step.split()).endswith(f" {figures}")


def test_the_document_has_every_span(measured, tidegate):
    said = tidegate("profile", "orders", "--json").json
    assert (said["pipeline"], said["id"], said["state"]) == ("orders", 3, "completed")
    whole = said["span"]
    job = whole["parts"][0]
    assert [part["name"] for part in whole["parts"]] == ["job main", "deciding", "publishing"]
    assert [part["name"] for part in job["parts"]] == ["read", "state totals", "between the steps"]
    step = job["parts"][1]
    assert (step["start_s"], step["seconds"], step["spark"]["queries"], step["spark"]["tasks"]) == (0.1, 2.0, 4, 9)
    assert (job["spark"]["queries"], job["spark"]["tasks"]) == (4, None), "not known of every step"
    assert whole["spark"]["analyses"] == 11


def test_the_slowest_can_come_first(measured, tidegate):
    parts = tidegate("profile", "orders", "--slowest", "--json").json["span"]["parts"]
    job = next(part for part in parts if part["name"] == "job main")
    assert job["parts"][0]["name"] == "state totals"
    seconds = [part["seconds"] for part in parts]
    assert seconds == sorted(seconds, reverse=True)


def test_a_checkpoint_of_an_earlier_version_has_the_durations_that_are_known(measured, tidegate):
    said = tidegate("profile", "orders", "--checkpoint", "1")
    assert said.code == 0
    assert "stage good" in said.out
    assert "queries" not in said.out, "no column of which nothing is known"
    job = tidegate("profile", "orders", "--checkpoint", "1", "--json").json["span"]["parts"][0]
    assert [(part["name"], part["start_s"], part["seconds"]) for part in job["parts"]] == [
        ("read", None, 0.1),
        ("stage good", None, 1.2),
    ]


def test_its_number_may_stand_alone_as_with_show_and_explain(measured, tidegate):
    by_number = tidegate("profile", "orders", "1", "--json")
    assert by_number.code == 0
    assert by_number.json == tidegate("profile", "orders", "--checkpoint", "1", "--json").json
    said = tidegate("profile", "orders", "1", "--checkpoint", "2", "--json")
    assert (said.code, said.json["error"]["reason"]) == (2, "USAGE")


def test_one_that_was_aborted_is_drawn_as_far_as_it_came(measured, tidegate):
    said = tidegate("profile", "orders", "--checkpoint", "2", "--json").json
    assert (said["state"], said["span"]["parts"]) == ("aborted", [])


def test_there_may_be_none(project, tidegate):
    assert tidegate("profile", "orders").code == 1
    said = tidegate("profile", "orders", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "NO_SUCH_CHECKPOINT")
    assert tidegate("profile", "orders", "--checkpoint", "7").code == 1
    assert tidegate("profile", "orders", "--checkpoint", "last").code == 2


def test_show_has_the_figures_of_each_step(measured, tidegate):
    text = tidegate("show", "orders", "3").out
    line = next(line for line in text.splitlines() if "state totals" in line and "11" in line)
    assert " ".join(line.split()) == "main state totals 2.00 s 4 1.50 s 0.50 s 0.75 s 11 0.25 s 5 6 9 1.20 s"
    document = tidegate("show", "orders", "3", "--json").json
    assert document["figures"]["queries"] == 4
    assert document["jobs"]["main"]["steps"][1]["spark"]["stages"] == 6
    assert "task time" not in tidegate("show", "orders", "1").out
