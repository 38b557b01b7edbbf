"""Declaring a pipeline: every mistake is told, all at once, before anything is read or written."""

import functools
import subprocess
import sys

import pytest

from tests.kit.declarations import TABLES, Repeating, one_problem, problems, sink, source
from tests.kit.toys import ToyFeed, ToySink, ToySource
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.pipeline.graph import graph
from tidegate.pipeline.graph.fingerprint import function_fingerprint, logic_of
from tidegate.records.place import Place


class Wrong(ToySink):
    """Knows by itself that it is wrong."""

    def problems(self):
        return ["keys is empty: name at least one", "mode is 'x'"]


class WrongSource(ToySource):
    def problems(self):
        return ["max_files is 0"]


class Nowhere(ToySink):
    def target(self, place):
        return place.url("")


def sound():
    """source → stage with two outputs → two sinks."""
    pipeline = Pipeline("orders", interval="1 min")
    orders = pipeline.source("orders", source())

    @pipeline.stage(orders, outputs=["good", "bad"])
    def split(frame):
        return frame, frame

    split["good"].sink("good", sink("good"))
    split["bad"].sink("bad", sink("bad"))
    return pipeline


# -- what is right ---------------------------------------------------------------------------------------


def test_a_sound_pipeline_is_one_job_with_its_operators_in_order():
    graph = sound().graph()
    assert graph.name == "orders"
    assert graph.settings == {"interval": "1 min"}
    (job,) = graph.jobs
    assert (job.name, [s.name for s in job.sources], [s.name for s in job.stages]) == ("main", ["orders"], ["split"])
    assert [(s.name, s.input) for s in job.sinks] == [("good", "split.good"), ("bad", "split.bad")]
    assert graph.job("main") == job
    assert (job.users("orders"), job.users("split.good"), job.users("nobody")) == (1, 1, 0)


def test_stages_come_behind_their_inputs_however_they_were_declared():
    pipeline = Pipeline("p")
    for name, inputs in (("last", ["middle", "in"]), ("middle", ["first"]), ("first", ["in"])):
        pipeline.stage(*inputs, name=name)(lambda *frames: frames[0])
    pipeline.source("in", source())
    pipeline.stage("last", name="end")(lambda frame: frame).sink("out", sink())
    assert [stage.name for stage in pipeline.graph().stages] == ["first", "middle", "last", "end"]


def test_one_stream_may_feed_many_and_one_stage_may_read_it_twice():
    pipeline = Pipeline("p")
    stream = pipeline.source("in", source()).sink("one", sink("a")).sink("two", sink("b"))

    @pipeline.stage(stream, stream)
    def joined(left, right):
        return left

    joined.sink("three", sink("c"))
    assert pipeline.graph().jobs[0].users("in") == 4


def test_declaring_reads_and_runs_nothing():
    called = []
    pipeline = Pipeline("p")

    @pipeline.stage(pipeline.source("in", source()))
    def never(frame):
        called.append(frame)

    never.sink("out", sink())
    pipeline.graph()
    assert called == []
    assert (repr(pipeline), repr(never)) == ("Pipeline('p')", "Stream('never')")


def test_importing_the_declaration_imports_neither_spark_nor_airflow():
    code = (
        "import sys, tidegate.pipeline, tidegate; print(sorted({'pyspark', 'airflow', 'deltalake'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- each mistake ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Orders", "a b", "a/b", "../a", "ä", "a" * 64, "-a", None, 7, ["a"]])
def test_a_bad_name_of_anything_is_told(name):
    found = "\n".join(problems(_named(pipeline=name)))
    assert f"pipeline name {name!r} is not allowed" in found
    for what in ("source", "sink"):
        assert f"{what} name {name!r} is not allowed" in "\n".join(problems(_named(**{what: name})))


def _named(pipeline="p", source_="in", sink_="out", **names):
    made = Pipeline(pipeline)
    made.source(names.get("source", source_), source()).sink(names.get("sink", sink_), sink())
    return made


@pytest.mark.parametrize("name", ["Big", "a.b", "x" * 64])
def test_a_bad_name_of_a_stage_or_output_is_told(name):
    pipeline = Pipeline("p")
    stage = pipeline.stage(pipeline.source("in", source()), name=name, outputs=[name])(lambda frame: frame)
    stage[name].sink("out", sink())
    found = problems(pipeline)
    assert any(f"stage name {name!r}" in problem for problem in found)
    assert any(f"output name {name!r}" in problem for problem in found)


def test_a_stage_without_a_name_is_told():
    pipeline = Pipeline("p")
    pipeline.stage(pipeline.source("in", source()))(lambda frame: frame).sink("out", sink())
    assert "stage name '' is not allowed" in one_problem(pipeline)


def test_names_that_are_used_twice_are_told():
    pipeline = sound()
    pipeline.source("orders", source())
    pipeline.stage("orders", name="split")(lambda frame: frame)
    pipeline.stage("split.good", name="orders")(lambda frame: frame).sink("good", sink("third"))
    found = "\n".join(problems(pipeline))
    assert "'orders' names 3 sources or stages: give each its own name" in found
    assert "'split' names 2 sources or stages" in found
    assert "'good' names 2 sinks" in found


def test_an_output_that_is_named_twice_is_told():
    pipeline = Pipeline("p")
    stage = pipeline.stage(pipeline.source("in", source()), outputs=["x", "x"], name="s")(lambda frame: frame)
    stage["x"].sink("out", sink())
    assert one_problem(pipeline) == "stage 's' has output 'x' more than once"


def test_no_source_and_no_sink_are_told():
    found = problems(Pipeline("p"))
    assert found[0].startswith("it has no source: add one with pipeline.source")
    assert found[1].startswith("it has no sink, so it would do nothing")


def test_more_tables_than_records_can_name_are_told(monkeypatch):
    monkeypatch.setattr(graph, "MAX_TABLES", 3)
    pipeline = Pipeline("shop")
    rows = pipeline.source("in", source())
    for number in range(4):
        rows.sink(f"out{number}", ToySink(f"out{number}", TABLES))
        if number == 2:
            assert len(pipeline.graph().sinks) == 3
    assert "it has 4 sinks and stages; there may be 3: divide it into several pipelines" in one_problem(pipeline)


def test_what_is_read_by_nothing_is_told():
    pipeline = sound()
    pipeline.source("unread", source())
    pipeline.stage("orders", name="idle")(lambda frame: frame)
    assert problems(pipeline) == [
        "source 'unread' is read by nothing: use it or remove it",
        "stage 'idle' feeds nothing: use it or remove it",
    ]


def test_unknown_inputs_are_told_with_what_there_is():
    pipeline = sound()
    pipeline.stage("order", name="typo")(lambda frame: frame).sink("x", sink("x"))
    pipeline.stage("split", name="whole")(lambda frame: frame).sink("y", sink("y"))
    known = "(known: orders, split.bad, split.good, typo, whole)"
    assert problems(pipeline) == [
        f"stage 'typo' reads unknown 'order' {known}",
        f"stage 'whole' reads unknown 'split' {known}",
    ]


def test_a_sink_on_an_unknown_stream_is_told():
    pipeline = sound()
    from tidegate.pipeline import Stream

    Stream(pipeline, "nothing").sink("lost", sink("lost"))
    assert one_problem(pipeline).startswith("sink 'lost' takes unknown 'nothing'")


def test_a_stage_without_inputs_is_told():
    pipeline = sound()
    pipeline.stage(name="alone")(lambda: None).sink("alone", sink("alone"))
    assert one_problem(pipeline).startswith("stage 'alone' has no input: name at least one")


@pytest.mark.parametrize("stages", [{"a": ["a"]}, {"a": ["b"], "b": ["a"]}, {"a": ["c"], "b": ["a"], "c": ["b"]}])
def test_a_circle_is_told(stages):
    pipeline = sound()
    for name, inputs in stages.items():
        pipeline.stage(*inputs, name=name)(lambda frame: frame)
    assert one_problem(pipeline) == (
        f"stages {', '.join(stages)} feed each other in a circle: a stage cannot wait for itself"
    )


@pytest.mark.parametrize(
    "function",
    [lambda: 1, lambda one, two: 1, lambda *, frame: 1],
    ids=["takes none", "takes two", "takes it by keyword"],
)
def test_a_stage_that_cannot_take_its_inputs_is_told(function):
    pipeline = sound()
    pipeline.stage("orders", name="odd")(function).sink("odd", sink("odd"))
    assert one_problem(pipeline).startswith("stage 'odd' cannot take its 1 inputs: ")


def test_a_stage_that_is_no_function_is_told():
    pipeline = sound()
    pipeline.stage("orders", name="sql")("select * from orders").sink("odd", sink("odd"))
    assert one_problem(pipeline) == "stage 'sql' is a str, not a function"


def test_a_source_or_sink_that_is_none_is_told():
    pipeline = Pipeline("p")
    pipeline.source("in", "landing/*.json").sink("out", "tables/orders").sink("class", ToySink)
    assert problems(pipeline) == [
        "source 'in' is a str, not a Source such as Files(…)",
        "sink 'out' is a str, not a Sink such as DeltaAppend(…)",
        "sink 'class' is a ABCMeta, not a Sink such as DeltaAppend(…)",
    ]


def test_what_sources_and_sinks_know_of_themselves_is_told():
    pipeline = Pipeline("p")
    pipeline.source("in", WrongSource(ToyFeed())).sink("out", Wrong("t", TABLES))
    assert problems(pipeline) == [
        "source 'in': max_files is 0",
        "sink 'out': keys is empty: name at least one",
        "sink 'out': mode is 'x'",
    ]


def test_a_sink_that_cannot_promise_exactly_once_needs_the_users_word():
    pipeline = Pipeline("p")
    stream = pipeline.source("in", source()).sink("mail", Repeating("t", TABLES))
    assert "can repeat rows after a failure" in one_problem(pipeline)
    accepted = Pipeline("p")
    accepted.source("in", source()).sink("mail", Repeating("t", TABLES), at_least_once=True)
    assert accepted.graph().sinks["mail"].at_least_once
    assert stream.name == "in"


def test_two_sinks_on_one_target_are_told():
    pipeline = Pipeline("p")
    pipeline.source("in", source()).sink("one", sink("t")).sink("two", sink("t")).sink("three", sink("u"))
    assert one_problem(pipeline).startswith("sinks one, two write to one target toy:t: union their streams")


def test_a_target_that_no_table_can_have_is_told_beside_the_rest():
    pipeline = Pipeline("p")
    pipeline.source("in", source()).sink("out", Nowhere("t", TABLES))
    pipeline.source("unread", source())
    assert problems(pipeline, Place("/data")) == [
        "source 'unread' is read by nothing: use it or remove it",
        "sink 'out': path '' is not usable; expected a path or URL without control characters",
    ]


def test_all_problems_are_listed_at_once():
    pipeline = Pipeline("Bad Name")
    pipeline.source("in", "nothing")
    pipeline.source("in", source())
    pipeline.stage("unknown", name="a")(lambda: None)
    pipeline.stage("b", name="b")(lambda frame: frame)
    assert len(problems(pipeline)) == 10


# -- what is refused at once, where it is written --------------------------------------------------------


@pytest.mark.parametrize(
    ("declare", "what"),
    [
        (lambda p: p.stage(source()), "a stage's input is a ToySource"),
        (lambda p: p.stage(None), "a stage's input is a NoneType"),
        (lambda p: p.stage(Pipeline("other").source("in", source())), "belongs to pipeline 'other', not to 'p'"),
        (lambda p: p.stage("in", outputs="good"), "a stage's outputs are the text 'good'"),
        (lambda p: p.source("in", source())["good"], "stage 'in' has no output 'good'"),
        (lambda p: p.stage("in", outputs=["a"])(lambda frame: frame)["b"], "has no output 'b'"),
    ],
)
def test_what_cannot_even_be_noted_is_refused_at_once(declare, what):
    with pytest.raises(Invalid) as caught:
        declare(Pipeline("p"))
    assert what in caught.value.what
    assert caught.value.expected
    assert caught.value.help


def test_a_job_that_the_graph_does_not_have_is_refused():
    with pytest.raises(Invalid) as caught:
        sound().graph().job("other")
    assert (caught.value.reason, caught.value.expected) == ("UNKNOWN_JOB", "main")


# -- fingerprints ----------------------------------------------------------------------------------------


def one_stage(function, *, bound=3, sink_name="out", source_name="in", skip=0, outputs=()):
    pipeline = Pipeline("p")
    stream = pipeline.source(source_name, ToySource(ToyFeed(), bound))
    stage = pipeline.stage(stream, name="s", outputs=outputs)(function)
    for output in outputs:
        stage = stage[output]
    stage.sink(sink_name, ToySink("t", TABLES, skip))
    return pipeline.graph().code_fingerprint()


def doubled(frame):
    return frame


def tripled(frame):
    return [frame, 3]


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, frame):
        return frame


BASE = one_stage(doubled)


@pytest.mark.parametrize(
    "other",
    [
        lambda: one_stage(tripled),
        lambda: one_stage(doubled, bound=4),
        lambda: one_stage(doubled, sink_name="other"),
        lambda: one_stage(doubled, source_name="other"),
        lambda: one_stage(doubled, skip=2),
        lambda: one_stage(doubled, outputs=["x"]),
        lambda: one_stage(functools.partial(doubled)),
        lambda: one_stage(Scaled(2)),
    ],
)
def test_a_fingerprint_changes_with_the_graph_the_settings_and_the_code(other):
    assert other() != BASE


def test_a_fingerprint_changes_with_what_a_function_was_given():
    two, three = (one_stage(functools.partial(scaled, by)) for by in (2, 3))
    assert two != three
    assert one_stage(Scaled(2)) != one_stage(Scaled(3))
    assert two == one_stage(functools.partial(scaled, 2))


def scaled(by, frame):
    return frame


def typed_at_a_prompt(text):
    scope = {}
    exec(text, scope)
    return scope["stage"]


def test_a_fingerprint_sees_constants_of_code_without_source():
    two, three = (typed_at_a_prompt(f"def stage(frame): return [frame, {n}, [lambda: {n}]]") for n in (2, 3))
    assert one_stage(two) != one_stage(three)
    assert one_stage(two) == one_stage(typed_at_a_prompt("def stage(frame): return [frame, 2, [lambda: 2]]"))


def test_a_fingerprint_does_not_change_with_settings_or_the_order_of_declaration():
    assert one_stage(doubled) == BASE
    pipelines = []
    for names in (("a", "b"), ("b", "a")):
        pipeline = Pipeline("p", interval=f"{len(pipelines) + 1} min")
        for name in names:
            pipeline.source(name, ToySource(ToyFeed())).sink(name, ToySink(name, TABLES))
        pipelines.append(pipeline.graph().code_fingerprint())
    assert pipelines[0] == pipelines[1]


ELSEWHERE = """
import functools
from tests.unit.pipeline.test_declare import *
print([one_stage(doubled), one_stage(functools.partial(scaled, doubled)), one_stage(Scaled(doubled)), one_stage(print)])
"""


def test_a_fingerprint_is_the_same_in_every_process():
    """Also of what has no source: nothing in it may be an address."""
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=True)
    here = [
        one_stage(doubled),
        one_stage(functools.partial(scaled, doubled)),
        one_stage(Scaled(doubled)),
        one_stage(print),
    ]
    assert done.stdout.strip() == str(here)


def test_who_is_told_of_a_suspension_is_a_function():
    pipeline = Pipeline("p")
    pipeline.source("s", source()).sink("t", sink())

    @pipeline.on_suspended
    def page(suspension):
        pass

    assert pipeline.graph().on_suspended == (page,)
    with pytest.raises(Invalid, match="was given a str"):
        pipeline.on_suspended("page me")


# -- rows chosen and columns computed in SQL --------------------------------------------------------------


def selecting(declare):
    """The graph of a pipeline that selects from orders."""
    pipeline = Pipeline("orders")
    declare(pipeline.source("orders", source())).sink("made", sink("made"))
    return pipeline.graph()


def test_a_selection_is_a_stage_named_after_what_it_reads_whatever_it_selects():
    def names(declare):
        return [stage.name for stage in selecting(declare).stages]

    assert names(lambda orders: orders.select("id", "amount * 2 AS twice")) == ["orders-select"]
    assert names(lambda orders: orders.select("*", where="amount > 0")) == ["orders-select"]
    assert names(lambda orders: orders.where("amount > 0").select("id")) == ["orders-where", "orders-where-select"]
    assert names(lambda orders: orders.where("amount > 0", name="paid").deduplicate(by="id")) == [
        "paid",
        "deduplicate-paid-id",
    ]


@pytest.mark.parametrize("hashed", [function_fingerprint, logic_of])
def test_another_text_is_other_code(hashed):
    def code(*columns, where):
        (stage,) = selecting(lambda orders: orders.select(*columns, where=where)).stages
        return hashed(stage.function)

    assert code("id", where="amount > 0") == code("id", where="amount > 0")
    assert len({code(*columns, where=where) for columns in (["id"], ["id", "n"]) for where in ("a", "b")}) == 4


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda orders: orders.select("id", None), "select of 'orders' has None"),
        (lambda orders: orders.select("id", 3), "select of 'orders' has 3"),
        (lambda orders: orders.select(["id", "n"]), r"select of 'orders' has \['id', 'n'\]"),
        (lambda orders: orders.select("id", where=lambda row: True), "select of 'orders' has <function"),
        (lambda orders: orders.where(" "), "where of 'orders' has ' '"),
    ],
)
def test_a_selection_is_text(declare, said):
    with pytest.raises(Invalid, match=said) as caught:
        selecting(declare)
    assert "SQL as text" in caught.value.expected


def test_a_selection_of_nothing_is_refused():
    with pytest.raises(Invalid, match="select of 'orders' has neither columns nor a condition"):
        selecting(lambda orders: orders.select())


def test_two_selections_of_one_stream_need_names():
    pipeline = Pipeline("orders")
    orders = pipeline.source("orders", source())
    for number in (1, 2):
        orders.where(f"n = {number}").sink(f"made{number}", sink(f"made{number}"))
    assert "'orders-where' names 2 sources or stages: give each its own name" in one_problem(pipeline)
