"""mode = "at_least_once": what it allows, and what it cannot promise."""

import pytest

from tests.kit.declarations import Repeating, one_problem, source
from tests.kit.toys import ToyFeed, ToyIntervals, ToySink, ToyTables
from tidegate import Pipeline
from tidegate.config import load_settings
from tidegate.errors import Invalid
from tidegate.gates import Expectations, Gate, Unseen, Volume
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files


def judged(gate, mode="at_least_once"):
    pipeline = Pipeline("p", mode=mode)
    stream = pipeline.source("in", source())
    stream.deduplicate(by="id", uid="unique").gate(gate, name="checked").sink("out", ToySink("t", ToyTables()))
    return pipeline


class Own(Gate):
    """Does not say what may follow."""

    kind = "own"

    def describe(self):
        return {}

    def judge(self, frame, context):
        raise AssertionError


REFUSED = {
    "abort": (Volume(), "may abort,"),
    "hold": (Volume(on_failure="hold"), "may hold,"),
    "quarantine": (Unseen("id", against="unique", on_failure="quarantine"), "may quarantine,"),
    "one severity of several": (
        Expectations("orders", on_failure={"critical": "hold", "warning": "warn", "info": "warn"}),
        "may hold,",
    ),
    "one of your own": (Own(), "may abort or hold or quarantine,"),
}


@pytest.mark.parametrize("gate", REFUSED)
def test_a_gate_can_only_warn_for_rows_are_there_before_its_verdict_counts(gate):
    given, told = REFUSED[gate]
    problem = one_problem(judged(given))
    assert problem.startswith("gate 'checked': it ")
    assert told in problem
    assert 'let it "warn", or set mode = "exactly_once"' in problem
    judged(given, mode="exactly_once").graph()


@pytest.mark.parametrize("gate", [Volume(on_failure="warn"), Expectations("orders", on_failure="warn")])
def test_one_that_warns_is_welcome(gate):
    assert judged(gate).graph().at_least_once


def test_a_wrong_policy_is_told_as_that():
    assert "policy 'explode'" in one_problem(judged(Volume(on_failure="explode")))


def test_a_sink_that_cannot_promise_exactly_once_needs_nobodys_word():
    pipeline = Pipeline("p", mode="at_least_once")
    pipeline.source("in", source()).sink("mail", Repeating("t", ToyTables()))
    assert pipeline.graph().sinks["mail"]


def test_intervals_replace_their_rows_in_one_commit_so_it_is_not_for_them():
    pipeline = Pipeline("p", mode="at_least_once")
    pipeline.source("in", ToyIntervals(ToyFeed())).sink("out", ToySink("t", ToyTables()))
    assert "source in reads by data interval" in one_problem(pipeline)


def test_what_all_settings_say_counts_not_only_the_code(tmp_path):
    (tmp_path / "tidegate.toml").write_text('mode = "at_least_once"\n')
    settings = load_settings(code={}, env={}, start=tmp_path)
    pipeline = judged(Volume(), mode="exactly_once")
    assert settings.mode == "at_least_once"
    with pytest.raises(Invalid, match="may abort"):
        pipeline.graph(settings.place(), settings.mode)


def test_no_other_mode_is_known(tmp_path):
    with pytest.raises(Invalid, match='mode = \'at_most_once\' .*expected "exactly_once" or "at_least_once"'):
        load_settings(cli={"mode": "at_most_once"}, env={}, start=tmp_path)


def test_sinks_of_ours_write_through():
    pipeline = Pipeline("p", mode="at_least_once")
    files = Files("in/*.json", schema="id long")
    pipeline.source("in", files).sink("out", DeltaAppend("t"))
    assert [name for name, sinking in pipeline.graph().sinks.items() if sinking.sink.can_publish_directly] == ["out"]
