"""The rules, question by question. `log` draws entries as text: see `draw`."""

import msgspec
import pytest

from tidegate.protocol.rules import (
    Abort,
    Adopt,
    Complete,
    CreateEntry,
    Damaged,
    DoneAlready,
    NothingToPublish,
    Publish,
    RunJob,
    SettleDivert,
    Stop,
    Wait,
    after_publish,
    on_completion,
    on_job,
    on_publish,
    on_trigger,
)
from tidegate.protocol.view import Acked, Entry, View
from tidegate.records.records import (
    Ack,
    Decision,
    DivertedPart,
    Handle,
    JobStats,
    Manifest,
    Payload,
    Plan,
    RecordedRule,
    TablePart,
    Verdict,
)

WHO = {"attempt": "x", "created": "now"}


def handle(id):
    return Handle(entry=id, sha=f"{id:064x}")


def plan(id, run, base, acks=("main",)):
    return Plan(
        **WHO,
        id=id,
        kind="manual",
        run=run,
        base=base,
        sources={},
        triggers=[],
        acks=list(acks),
        commits=[],
        timeout_s=1.0,
        config={},
        config_fingerprint="",
        code_fingerprint="",
    )


def manifest(id, **tables):
    """Tables as name=(after, has rows)."""
    parts = {
        name: TablePart(after=after, committables=[Payload(data={})] if rows else [])
        for name, (after, rows) in tables.items()
    }
    return Manifest(**WHO, id=id, base=None, base_manifest=None, positions={}, jobs={"main": handle(id)}, tables=parts)


def entry(id, drawn, made=None):
    """ "C" completed, "A" aborted, "o" open, "k" open with its ack; then "<base>" and "@run" if not as usual."""
    state, _, run = drawn.partition("@")
    base = int(state[1:]) if state[1:] else (id - 1 or None)
    acked = {"main": Acked(Ack(**WHO, id=id, job="main", prev=None, sinks={}, stats=JobStats()), handle(id))}
    decision = {
        "C": Decision(**WHO, id=id, outcome="completed", manifest="0" * 64),
        "A": Decision(**WHO, id=id, outcome="aborted"),
    }.get(state[0])
    return Entry(
        plan=plan(id, run or f"run{id}", base),
        acks=acked if state[0] in "Ck" else {},
        decision=decision,
        manifest=(made or manifest(id)) if state[0] == "C" else None,
    )


def draw(log, first=1, elsewhere=(), settled=0):
    """A view: "C k o" is a completed entry 1, and on it the open entries 2 (acked) and 3."""
    entries = tuple(entry(id, drawn) for id, drawn in enumerate(log.split(), first))
    return View(entries=entries, settled=settled, own_outside_view=tuple(elsewhere))


# -- trigger ---------------------------------------------------------------------------------------------

NEW = "new"


@pytest.mark.parametrize(
    ("log", "max_open", "answer", "why"),
    [
        ("", 1, CreateEntry(1, None, 0), "the first of all"),
        ("C", 1, CreateEntry(2, 1, 0), "on top of the last"),
        ("C C", 1, CreateEntry(3, 2, 0), "on top of the last of several"),
        ("C A", 1, CreateEntry(3, 1, 0), "an aborted id is never used again, its input is"),
        ("A A", 1, CreateEntry(3, None, 0), "nothing has ever counted"),
        ("C A1 A1", 1, CreateEntry(4, 1, 0), "over all that was aborted"),
        ("o", 1, Wait((1,)), "somebody is at work"),
        ("C k", 1, Wait((2,)), "also when only the decision is missing"),
        ("C o", 2, CreateEntry(3, 2, 0), "two at once: on top of the open one"),
        ("C o o", 2, Wait((2, 3)), "but not three"),
        ("C A C1", 1, CreateEntry(4, 3, 0), "over an abort in the middle"),
        ("A o1", 2, Abort(2, "BASE_ABORTED", "checkpoint 1, its base, was aborted", False), "dead by its base"),
        ("C A1 o2 o3", 4, Abort(3, "BASE_ABORTED", "checkpoint 2, its base, was aborted", False), "lowest first"),
        ("C A1 A2 o3", 4, Abort(4, "BASE_ABORTED", "checkpoint 3, its base, was aborted", False), "then the next"),
    ],
)
def test_what_a_new_run_does(log, max_open, answer, why):
    assert on_trigger(draw(log), NEW, max_open, {}) == answer, why


def test_ids_continue_behind_a_view_that_begins_late():
    assert on_trigger(draw("C C", first=41), NEW, 1, {}) == CreateEntry(43, 42, 0)
    assert on_trigger(draw("C A", first=99_999_999), NEW, 1, {}) == CreateEntry(100_000_001, 99_999_999, 0)


@pytest.mark.parametrize("state", ["o", "k", "C"])
def test_a_run_adopts_what_it_has_whatever_else_there_is(state):
    assert on_trigger(draw(f"C {state}@mine"), "mine", 1, {}) == Adopt(2)
    assert on_trigger(draw(f"C {state}@mine o"), "mine", 1, {3: "CHECKPOINT_EXPIRED"}) == Adopt(2)


def test_after_an_abort_the_run_gets_another_id():
    assert on_trigger(draw("C A@mine"), "mine", 1, {}) == CreateEntry(3, 1, 0)
    assert on_trigger(draw("C A@mine o1@mine"), "mine", 1, {}) == Adopt(3)


@pytest.mark.parametrize(
    ("elsewhere", "answer"),
    [
        ([entry(7, "C@mine")], Adopt(7)),
        ([entry(7, "A@mine")], CreateEntry(43, 42, 0)),
        ([entry(7, "A@mine"), entry(9, "C@mine")], Adopt(9)),
        ([entry(7, "C@mine"), entry(9, "A@mine")], Adopt(7)),
        ([7], Adopt(7)),
        ([3, entry(7, "A@mine")], Adopt(3)),
    ],
)
def test_an_old_run_is_recognised_below_the_view(elsewhere, answer):
    """Scenario 8, for the protocol. A bare id is a retired entry."""
    assert on_trigger(draw("C C", first=41, elsewhere=elsewhere), "mine", 1, {}) == answer


def test_what_somebody_has_reason_to_end_is_ended_lowest_first():
    log = draw("C o o")
    assert on_trigger(log, NEW, 1, {3: "RUN_GONE", 2: "CHECKPOINT_EXPIRED"}) == Abort(2, "CHECKPOINT_EXPIRED", "", True)
    assert on_trigger(log, NEW, 1, {3: "RUN_GONE"}) == Abort(3, "RUN_GONE", "", False)


def test_what_is_decided_is_never_ended():
    assert on_trigger(draw("C A1"), NEW, 1, {1: "RUN_GONE", 2: "RUN_GONE"}) == CreateEntry(3, 1, 0)


@pytest.mark.parametrize(
    ("reason", "counts"), [("CHECKPOINT_EXPIRED", True), ("RUN_GONE", False), ("CANCELLED", False)]
)
def test_only_the_pipelines_own_failures_count(reason, counts):
    assert on_trigger(draw("o"), NEW, 1, {1: reason}).counts is counts


# -- job -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "base", "answer", "why"),
    [
        ("o", None, RunJob(None), "the first checkpoint of all"),
        ("o", "C", RunJob(handle(1)), "continues what its base's manifest holds"),
        ("o", "k", RunJob(handle(1)), "or the base's ack, decided or not"),
        ("o", "o", Wait((1,)), "the base's job is not done"),
        ("k", "C", DoneAlready(), "a retry finds the ack"),
        ("C", "C", DoneAlready(), "also after the decision"),
        ("k", "A", DoneAlready(), "and even if all is in vain: completion says so"),
        ("A", "C", Stop("checkpoint 2 was aborted without job 'main'"), "fenced"),
        ("o", "A", Stop("checkpoint 1, the base of 2, was aborted"), "fenced by its base"),
    ],
)
def test_what_a_job_does_first(own, base, answer, why):
    on = entry(1, base) if base else None
    assert on_job(entry(2, own), on, "main") == answer, why


def test_a_job_whose_entry_is_gone_stops():
    assert isinstance(on_job(None, None, "main"), Stop)


def test_a_job_that_is_new_in_the_code_starts_from_nothing():
    assert on_job(entry(2, "o"), entry(1, "C"), "added") == RunJob(None)


# -- completion ------------------------------------------------------------------------------------------

FAILED = ("JOB_FAILED", "out of memory")


@pytest.mark.parametrize(
    ("own", "base", "failure", "kind", "why"),
    [
        ("k", None, None, Complete, "all acks are in"),
        ("k", "C", None, Complete, "and the base is completed"),
        ("k", "k", None, Wait, "never before its base"),
        ("k", "o", None, Wait, "never before its base"),
        ("k", "o", FAILED, Wait, "a late failure of an acked job changes nothing"),
        ("o", "C", None, Wait, "an ack is missing"),
        ("o", "C", FAILED, Abort, "and will never come"),
        ("o", "o", FAILED, Abort, "an abort needs no completed base"),
        ("k", "C", FAILED, Complete, "another attempt has acked"),
        ("k", "A", None, Abort, "dead by its base"),
        ("o", "A", None, Abort, "dead by its base"),
        ("C", "C", FAILED, DoneAlready, "decided is decided"),
        ("A", "C", None, DoneAlready, "decided is decided"),
    ],
)
def test_whether_a_checkpoint_is_decided(own, base, failure, kind, why):
    answer = on_completion(entry(2, own), entry(1, base) if base else None, failure)
    assert isinstance(answer, kind), why
    if kind is Wait:
        assert answer.ids == ((1,) if own == "k" else (2,))
    if kind is Complete:
        assert answer.acks == {"main": handle(2)}


def test_an_abort_says_why_and_whether_it_counts():
    assert on_completion(entry(1, "o"), None, FAILED) == Abort(1, "JOB_FAILED", "out of memory", counts=True)
    assert on_completion(entry(2, "k"), entry(1, "A"), None).counts is False


def verdict(outcome, why="", **broken):
    told = {"severity": "critical", "rows": 1, "why": "1 row"}
    rules = [RecordedRule(rule=rule, policy=policy, **told) for rule, policy in broken.items()]
    return Verdict(outcome=outcome, rows=9, quarantined=0, why=why, broken=rules, policy={}, results=Payload(data={}))


def judged(own, *verdicts, acks=("main",)):
    gates = {f"gate{number}": each for number, each in enumerate(verdicts)}
    ack = Ack(**WHO, id=2, job="main", prev=None, sinks={}, gates=gates, stats=JobStats())
    return Entry(plan=plan(2, "r", 1, acks), acks={"main": Acked(ack, handle(2))}, decision=entry(2, own).decision)


def test_a_verdict_aborts_whatever_else_is_there():
    refused = verdict("abort", one="warn", two="abort")
    told = Abort(2, "GATE_FAILED", "gate 'gate1': two: 1 row", counts=True)
    assert on_completion(judged("k", verdict("pass"), refused), entry(1, "C")) == told
    assert on_completion(judged("k", verdict("pass"), refused), entry(1, "o")) == told, "the base makes no difference"
    assert on_completion(judged("k", verdict("pass"), refused, acks=("main", "late")), entry(1, "C")) == told, (
        "nor do other jobs"
    )
    assert on_completion(judged("k", refused), entry(1, "A")).reason == "BASE_ABORTED"
    assert on_completion(judged("C", refused), entry(1, "C")) == DoneAlready(), "decided is decided"
    assert on_completion(judged("k", verdict("abort", why="too many")), None).detail == "gate 'gate0': too many"


@pytest.mark.parametrize("outcome", ["pass", "warn", "quarantine"])
def test_any_other_verdict_lets_pass(outcome):
    assert isinstance(on_completion(judged("k", verdict(outcome, rule="warn")), entry(1, "C")), Complete)


def test_with_several_jobs_all_acks_are_needed():
    two = Entry(plan=plan(1, "r", None, acks=["one", "main"]), acks=entry(1, "k").acks)
    assert on_completion(two, None) == Wait((1,))
    assert on_completion(two, None, FAILED).reason == "JOB_FAILED"


def test_a_retired_checkpoint_needs_nothing_more():
    assert on_completion(None, None, FAILED) == DoneAlready()


# -- publish ---------------------------------------------------------------------------------------------


def completed(*parts, first=1):
    """A view of completed entries: each part is (after, has rows) for table t, or None if it is not mentioned."""
    entries = tuple(
        entry(id, "C", manifest(id, **({"t": part} if part else {}))) for id, part in enumerate(parts, first)
    )
    return View(entries=entries)


ROWS, NONE = True, False


@pytest.mark.parametrize(
    ("parts", "last", "answer", "why"),
    [
        ([], None, NothingToPublish(), "an empty log"),
        ([(None, ROWS)], None, Publish(1, None), "the first"),
        ([(None, ROWS)], 1, NothingToPublish(), "it is there"),
        ([(None, ROWS), (1, ROWS)], None, Publish(1, None), "in order"),
        ([(None, ROWS), (1, ROWS)], 1, Publish(2, 1), "in order"),
        ([(None, ROWS), (1, NONE), (1, ROWS)], 1, Publish(3, 1), "over one that has nothing for it"),
        ([(None, ROWS), (1, NONE)], 1, NothingToPublish(), "nothing new"),
        ([(None, NONE), (None, ROWS)], None, Publish(2, None), "the first that has something"),
        ([None, None, (None, ROWS)], None, Publish(3, None), "a sink that was added later"),
        ([(None, ROWS), None], 1, NothingToPublish(), "a sink that is not mentioned any more"),
    ],
)
def test_what_a_table_takes_next(parts, last, answer, why):
    assert on_publish(completed(*parts), "t", last) == answer, why


@pytest.mark.parametrize(
    ("parts", "first", "last"),
    [
        ([(None, ROWS)], 1, 2),  # the table is ahead: the log was wiped, or restored from an old copy
        ([], 1, 7),
        ([(1, ROWS)], 2, None),  # the table held 1 and does not any more
        ([(1, ROWS)], 2, 7),
    ],
)
def test_a_contradiction_between_table_and_log_is_damage(parts, first, last):
    assert isinstance(on_publish(completed(*parts, first=first), "t", last), Damaged)


def test_a_table_made_anew_is_filled_again_if_the_log_still_reaches_back_to_the_beginning():
    """If the staged files are gone with it, the sink says so."""
    assert on_publish(completed((None, ROWS), (1, ROWS)), "t", None) == Publish(1, None)


def test_a_table_that_was_set_back_behind_the_view_is_damage():
    """The log begins at 5, which is settled; the table says 3, or nothing."""
    view = completed((4, ROWS), (5, ROWS), first=5)
    assert isinstance(on_publish(view, "t", 3), Damaged)
    assert isinstance(on_publish(view, "t", None), Damaged)
    assert on_publish(view, "t", 5) == Publish(6, 5)
    empty = completed((4, NONE), first=5)
    assert on_publish(empty, "t", 4) == NothingToPublish()
    assert isinstance(on_publish(empty, "t", 3), Damaged)
    assert isinstance(on_publish(empty, "t", None), Damaged)


@pytest.mark.parametrize(
    ("begun", "answer", "why"),
    [
        (None, Publish(3, 1, diverted=True), "in place of what waits"),
        (3, Publish(3, 1, diverted=True), "the rest of the divert itself"),
        (2, SettleDivert(3, applied=False), "it has a part of the rows that the divert leaves out"),
    ],
)
def test_a_divert_never_applies_once_the_table_has_a_part_of_what_waits(begun, answer, why):
    view = completed((None, ROWS), (1, ROWS), (2, NONE))
    part = DivertedPart(table="t", after=1, committables=[Payload(data={})])
    diverting = msgspec.structs.replace(view.entries[2].manifest.tables["t"], diverted=part)
    made = msgspec.structs.replace(view.entries[2].manifest, tables={"t": diverting})
    view = View(entries=(*view.entries[:2], entry(3, "C", made)))
    assert on_publish(view, "t", 1, {}, begun) == answer, why
    assert on_publish(view, "t", 1, {3: False}, 2) == Publish(2, 1), "what waits comes in its turn"


def test_what_is_open_or_aborted_is_never_published():
    view = View(entries=(entry(1, "k"), entry(2, "A")))
    assert on_publish(view, "t", None) == NothingToPublish()
    assert (
        on_publish(View(entries=(entry(1, "C", manifest(1, t=(None, ROWS))), entry(2, "k"))), "t", 1)
        == NothingToPublish()
    )


@pytest.mark.parametrize(
    ("parts", "holds"),
    [
        ([], None),
        ([(None, ROWS)], 1),
        ([(None, NONE)], None),
        ([(None, ROWS), (1, NONE)], 1),
        ([(None, ROWS), None], 1),
    ],
)
def test_what_a_table_holds_when_all_is_published(parts, holds):
    assert after_publish([each.manifest for each in completed(*parts).entries], "t") == holds


# -- several jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acked", "outcome", "base", "answer", "why"),
    [
        ((), "pass", "C", Wait((2,)), "neither of the jobs that it takes from is done"),
        (("one",), "pass", "C", Wait((2,)), "one of them is not"),
        (("one", "two"), "pass", "C", RunJob(None), "all that it takes is there"),
        (("one", "two"), "hold", "C", RunJob(None), "a person may yet approve: its work is staged meanwhile"),
        (
            ("one",),
            "abort",
            "C",
            Stop("checkpoint 2 cannot be completed any more: gate 'checked': 1 of 5"),
            "all is in vain",
        ),
        (
            ("one", "two"),
            "abort",
            None,
            Stop("checkpoint 2 cannot be completed any more: gate 'checked': 1 of 5"),
            "so, too",
        ),
        ((), "pass", "A", Stop("checkpoint 1, the base of 2, was aborted"), "first of all by its base"),
    ],
)
def test_a_job_takes_what_others_make_when_these_are_done(acked, outcome, base, answer, why):
    gates = {"checked": verdict(outcome, why="1 of 5")}
    acks = {
        job: Acked(
            Ack(**WHO, id=2, job=job, prev=None, sinks={}, gates=gates if job == "one" else {}, stats=JobStats()),
            handle(2),
        )
        for job in acked
    }
    own = Entry(plan=plan(2, "r", 1, ("one", "two", "last")), acks=acks)
    on = entry(1, base) if base else None
    assert on_job(own, on, "last", ("one", "two")) == answer, why
