"""Cutting a graph into jobs: one, unless the user says otherwise; what goes between them is told."""

import pytest

from tests.kit.declarations import one_problem, sink, source
from tidegate import Pipeline
from tidegate.config import load_settings
from tidegate.errors import Invalid
from tidegate.sinks import DeltaUpsert


def told(pipeline):
    """job → (sources, stages, sinks), in order."""
    return {
        job.name: (
            [each.name for each in job.sources],
            [each.name for each in job.stages],
            [each.name for each in job.sinks],
        )
        for job in pipeline.graph().jobs
    }


def edges(pipeline):
    return {job.name: (job.takes, job.gives, job.after) for job in pipeline.graph().jobs}


def stage(pipeline, name, *inputs, outputs=()):
    return pipeline.stage(*inputs, name=name, outputs=outputs)(lambda *frames: frames[0])


def test_what_is_put_into_a_job_stays_there_with_all_that_follows():
    p = Pipeline("p")
    clean = stage(p, "clean", p.source("in", source()))
    clean.sink("clean", sink("clean"))
    scored = stage(p, "scored", clean.job("scoring"))
    stage(p, "rounded", scored).sink("scores", sink("scores"))
    assert told(p) == {
        "main": (["in"], ["clean"], ["clean"]),
        "scoring": ([], ["scored", "rounded"], ["scores"]),
    }
    assert edges(p) == {"main": ((), ("clean",), ()), "scoring": (("clean",), (), ("main",))}


def test_a_stream_that_several_jobs_take_is_given_once():
    p = Pipeline("p")
    clean = stage(p, "clean", p.source("in", source()))
    for job in ("a", "b"):
        stage(p, f"{job}1", clean.job(job)).sink(job, sink(job))
    assert edges(p) == {
        "main": ((), ("clean",), ()),
        "a": (("clean",), (), ("main",)),
        "b": (("clean",), (), ("main",)),
    }


def test_a_source_is_read_where_it_is_taken_and_by_several_jobs_in_the_first():
    p = Pipeline("p")
    left, right = p.source("left", source()), p.source("right", source())
    one = stage(p, "one", left.job("a"))
    both = stage(p, "both", one, stage(p, "two", right.job("b")))
    stage(p, "again", both, left).sink("out", sink())
    assert told(p) == {
        "a": (["left"], ["one"], []),
        "b": (["right"], ["two"], []),
        "both": ([], ["both", "again"], ["out"]),
    }
    assert edges(p)["both"] == (("left", "one", "two"), (), ("a", "b"))
    assert edges(p)["a"] == ((), ("left", "one"), ())


def test_one_output_of_a_stage_and_a_sink_go_into_jobs_too():
    p = Pipeline("p")
    split = stage(p, "split", p.source("in", source()), outputs=["good", "bad"])
    split["good"].sink("good", sink("good"))
    split["bad"].job("rejects").sink("bad", sink("bad"))
    p2 = told(p)
    assert p2 == {"main": (["in"], ["split"], ["good"]), "rejects": ([], [], ["bad"])}
    assert edges(p)["rejects"] == (("split.bad",), (), ("main",))
    assert [split.job("x")["good"].into_job, split["good"].into_job] == ["x", None]


def test_jobs_come_behind_those_that_they_take_from_however_they_were_declared():
    p = Pipeline("p")
    p.source("in", source())
    p.stage("first", name="last")(lambda f: f).job("z").sink("out", sink())
    stage(p, "first", "in")
    assert list(told(p)) == ["main", "z"]


def test_jobs_that_wait_for_each_other_are_refused():
    p = Pipeline("p")
    one = stage(p, "one", p.source("in", source()))
    two = stage(p, "two", one.job("side"))
    stage(p, "three", two.job("main")).sink("out", sink())
    assert one_problem(p) == (
        "jobs main, side wait for each other (three of main takes two of side; two of side takes one of main): "
        "put the stages between them into one of them, with .job(…)"
    )


def test_a_stage_cannot_be_in_two_jobs():
    p = Pipeline("p")
    left, right = p.source("left", source()), p.source("right", source())
    with pytest.raises(Invalid, match="jobs a and b at once"):
        stage(p, "both", left.job("a"), right.job("b"))


@pytest.mark.parametrize("name", ["Big Job", "", 3, ["x"], "../x"])
def test_a_jobs_name_is_checked_like_any_other(name):
    p = Pipeline("p")
    stage(p, "one", p.source("in", source()).job(name)).sink("out", sink())
    assert f"job name {name!r} is not allowed" in one_problem(p)


def test_moving_a_stage_to_another_job_is_another_code():
    def of(job):
        p = Pipeline("p")
        clean = stage(p, "clean", p.source("in", source()))
        stage(p, "more", clean.job(job) if job else clean).sink("out", sink())
        return p.graph().code_fingerprint()

    assert of("main") == of(None)
    assert len({of(None), of("a"), of("b")}) == 3


def test_at_least_once_a_job_takes_ahead_unless_something_is_to_meet_behind_it():
    p = Pipeline("p", mode="at_least_once")
    clean = stage(p, "clean", p.source("in", source(), event_time="at"))
    clean.job("free").deduplicate(by="id", uid="unique").sink("unique", sink("unique"))
    kept = stage(p, "kept", clean.job("kept", aligned=True))
    kept.sink("kept", sink("kept"))
    clean.job("newest").sink("newest", DeltaUpsert("newest", keys=["id"]))
    left = stage(p, "left", clean.job("left"))
    stage(p, "both", left.job("both"), clean.job("both")).sink("both", sink("both"))
    totals = clean.aggregate(by="id", uid="totals", n="count(*)")
    totals.job("changes").aggregate(by="n", uid="again", m="count(*)").sink("again", DeltaUpsert("t", keys=["n"]))
    joined = clean.job("joined").join(clean, on="id", within="1 min", prefix="x_", uid="pairs")
    joined.sink("pairs", sink("pairs"))
    assert p.graph().greedy_jobs == ("free", "joined")
    assert p.graph(mode="exactly_once").greedy_jobs == ()


# -- what a job has of its own ---------------------------------------------------------------------------


def scoring(**own):
    """A pipeline with two jobs, and the stream that the second one takes."""
    p = Pipeline("p", spark={"mode": "submit"})
    clean = stage(p, "clean", p.source("in", source()))
    clean.sink("clean", sink("clean"))
    stage(p, "scored", clean.job("scoring", **own)).sink("scores", sink("scores"))
    return p, clean


def test_what_a_job_is_declared_with_are_settings_of_that_job(tmp_path):
    p, _ = scoring(spark={"spark.executor.memory": "8g", "spark.dynamicAllocation.enabled": True}, pool="gpu")
    settings = load_settings(code=p.settings, env={}, start=tmp_path)
    assert settings.job("scoring").airflow == {"pool": "gpu"}
    assert settings.job("scoring").spark == {
        "spark.executor.memory": "8g",
        "spark.dynamicAllocation.enabled": "true",
    }
    assert (settings.job("main").airflow, settings.job("main").spark) == ({}, {})


def test_the_main_job_has_its_own_by_the_pipelines_settings(tmp_path):
    jobs = {"main": {"pool": "small"}, "scoring": {"queue": "q"}}
    p = Pipeline("p", jobs=jobs)
    clean = stage(p, "clean", p.source("in", source()))
    stage(p, "scored", clean.job("scoring", pool="gpu")).sink("scores", sink("scores"))
    p.graph()
    settings = load_settings(code=p.settings, env={}, start=tmp_path)
    assert settings.job("main").airflow == {"pool": "small"}
    assert settings.job("scoring").airflow == {"queue": "q", "pool": "gpu"}
    assert jobs == {"main": {"pool": "small"}, "scoring": {"queue": "q"}}, "what the user wrote stays as it is"


def test_more_memory_is_no_other_code():
    small, large = (scoring(spark={"spark.executor.memory": size}, pool=size)[0] for size in ("1g", "8g"))
    assert (
        small.graph().code_fingerprint() == large.graph().code_fingerprint() == scoring()[0].graph().code_fingerprint()
    )


def test_a_job_that_is_named_again_need_not_say_it_again_and_may_not_say_otherwise():
    p, clean = scoring(pool="gpu")
    clean.job("scoring")
    clean.job("scoring", pool="gpu", queue="fast")
    assert p.settings["jobs"] == {"scoring": {"pool": "gpu", "queue": "fast"}}
    with pytest.raises(Invalid, match="job 'scoring' is declared with pool='gpu' and with pool='cpu'"):
        clean.job("scoring", pool="cpu")


@pytest.mark.parametrize(
    ("given", "told"),
    [({"spark": {"executor.memory": "8g"}}, "executor.memory"), ({"spark": ["spark.executor.memory=8g"]}, "a dict of")],
)
def test_settings_of_spark_are_called_as_spark_calls_them(given, told):
    with pytest.raises(Invalid) as refused:
        scoring(**given)
    assert told in str(refused.value)


def test_options_for_a_job_that_nothing_runs_in_are_refused():
    p, clean = scoring()
    clean.job("training", pool="gpu")  # its stream is thrown away
    told = "job 'training' has options, but nothing runs in it: the pipeline's jobs are main, scoring"
    assert one_problem(p).endswith(told)
    for settings in ({"jobs": {"scorring": {"pool": "gpu"}}}, {"jobs.scorring.pool": "gpu"}):
        other = Pipeline("p", **settings)
        stage(other, "clean", other.source("in", source())).sink("clean", sink("clean"))
        assert "job 'scorring' has options" in one_problem(other)
