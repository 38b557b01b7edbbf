"""tidegate plan: the jobs of a pipeline before anything runs."""

import sys

import pytest

CODE = """
from tidegate import Pipeline
from tidegate.gates import Volume
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files, Generator

one, two, wrong = Pipeline("one"), Pipeline("two"), Pipeline("wrong")
for pipeline, job in ((one, "main"), (two, "totals")):
    checked = pipeline.source("events", Generator(rows=1)).gate(Volume(on_failure="hold"), name="checked")
    checked.sink("good", DeltaAppend("tables/good"))
    totals = checked.job(job).aggregate(by="k", n="count(*)", uid="totals")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
wrong.source("events", Generator(rows=1))
daily = Pipeline("daily")
days = daily.source("days", Files("landing/{start:%Y-%m-%d}/*.json", schema="k long"))
days.aggregate(by="k", n="count(*)", uid="totals").sink("totals", DeltaAppend("tables/daily"))
"""


@pytest.fixture(autouse=True)
def _code(folder, monkeypatch):
    (folder / "cut.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("cut", None)


def test_each_job_says_what_it_takes_and_what_it_gives(tidegate, folder):
    said = tidegate("plan", "--no-spark", "cut:two", "--json")
    assert said.code == 0
    first, second = said.json["jobs"]
    assert (first["job"], first["after"], first["reads"], first["parts"]) == ("main", [], ["events"], ["checked"])
    assert (first["receives"], first["sends"], first["states"]) == ([], ["checked"], [])
    assert first["writes"][0] == "good"
    assert second == {
        "job": "totals",
        "after": ["main"],
        "reads": [],
        "receives": ["checked"],
        "parts": ["totals"],
        "states": ["state.totals"],
        "sends": [],
        "writes": ["totals"],
        "settings": {},
    }
    text = tidegate("plan", "--no-spark", "cut:two").out
    assert "operator · aggregate, in job totals" in text
    assert "job totals, after main" in text
    assert not (folder / "data").exists(), "nothing was written"


def test_without_jobs_of_its_own_it_is_one(tidegate):
    (job,) = tidegate("plan", "--no-spark", "cut:one", "--json").json["jobs"]
    assert (job["job"], job["parts"], job["sends"]) == ("main", ["checked", "totals"], [])


def test_each_job_says_what_it_has_of_its_own(tidegate):
    own = ["-D", "jobs.totals.pool=small", "-D", "jobs.totals.spark.sql.shuffle.partitions=4"]
    first, second = tidegate("plan", "--no-spark", "cut:two", "--json", *own).json["jobs"]
    assert first["settings"] == {}
    assert second["settings"] == {"pool": "small", "spark.sql.shuffle.partitions": "4"}
    assert (
        "  settings   pool = small\n             spark.sql.shuffle"
        in tidegate("plan", "--no-spark", "cut:two", *own).out
    )
    refused = tidegate("plan", "--no-spark", "cut:two", "-D", "jobs.total.pool=small", "--json")
    assert (refused.code, refused.json["error"]["reason"]) == (2, "UNKNOWN_JOB")
    assert "main or totals" in refused.json["error"]["expected"]


def test_what_cannot_be_a_pipeline_is_told_as_everywhere(tidegate):
    said = tidegate("plan", "--no-spark", "cut:wrong", "--json")
    assert (said.code, said.json["error"]["reason"]) == (2, "BAD_PIPELINE")
    assert tidegate("plan", "--no-spark", "one", "--json").json["error"]["reason"] == "NEEDS_CODE"


def test_the_mode_is_told_with_what_it_means(tidegate):
    assert tidegate("plan", "--no-spark", "cut:two", "--json").json["mode"] == "exactly_once"
    assert (
        "mode exactly_once: rows are staged, and become visible with the decision"
        in tidegate("plan", "--no-spark", "cut:two").out
    )
    refused = tidegate("plan", "--no-spark", "cut:two", "-D", "mode=at_least_once")
    assert refused.code == 2
    assert "gate 'checked': it may hold" in refused.err


def test_by_interval_operators_remember_nothing_and_it_says_so(tidegate, folder):
    assert [job["states"] for job in tidegate("plan", "--no-spark", "cut:daily", "--json").json["jobs"]] == [[]]
    said = "by interval: each operator starts without state, and its event time ends with the interval"
    assert said in tidegate("plan", "--no-spark", "cut:daily").out
    assert said not in tidegate("plan", "--no-spark", "cut:two").out
