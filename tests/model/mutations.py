"""What must not be done, one rule broken at a time, each in the smallest world that shows the damage.

tests/model/README.md lists them. Some break a rule (another answer of the protocol), some break how
an answer is carried out (the steps look for the mutation's name).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from tests.model.world import ModelWorld
from tests.model.worlds import (
    AN_HOUR_IS_EMPTIED,
    BACK_AND_POWER,
    HELD,
    INTERVALS,
    ONE_AT_A_TIME,
    ONE_RUN_AGAIN,
    POWER,
    ROLLED_BACK,
    THREE_RUNS,
    TWO_AT_A_TIME,
    WITH_PUBLISHER,
    WITH_READER,
)
from tidegate.protocol import rules
from tidegate.protocol.view import Entry, View
from tidegate.records.records import Decision


@dataclass(frozen=True)
class Mutation:
    """One rule, broken: in which world, and what has to be seen."""

    name: str
    world: ModelWorld
    shows: str
    """A part of the problem that has to be found."""

    def broken_world(self) -> ModelWorld:
        """The world with this mutation switched on."""
        return replace(self.world, broken=self.world.broken | {self.name})


# -- rules that answer wrongly -----------------------------------------------------------------------------


def _forged(base: Entry) -> Entry:
    return replace(base, decision=Decision(attempt="x", created="", id=base.id, outcome="completed"))


def _complete_on(state: str) -> Callable[..., object]:
    def on_completion(entry: Entry, base: Entry | None, failure: tuple[str, str] | None = None) -> object:
        forge = base is not None and getattr(base, state)
        return rules.on_completion(entry, _forged(base) if forge and base else base, failure)

    return on_completion


def _complete_what_is_held(entry: Entry, base: Entry | None, failure: tuple[str, str] | None = None) -> object:
    free = {job: replace(a, ack=msgspec.structs.replace(a.ack, gates={})) for job, a in entry.acks.items()}
    return rules.on_completion(replace(entry, acks=free), base, failure)


def _last_completed(view: View, answer: object) -> object:
    if not isinstance(answer, rules.CreateEntry):
        return answer
    base = view.last_completed
    return replace(answer, base=base.id if base else None)


def _base_is_last_completed(view: View, run: str, max_open: int, give_up: Mapping[int, str]) -> object:
    return _last_completed(view, rules.on_trigger(view, run, max_open, give_up))


def _ignore_pendings(view: View, run: str, max_open: int, give_up: Mapping[int, str]) -> object:
    return _last_completed(view, rules.on_trigger(view, run, 99, {}))


def _no_run_scan(view: View, run: str, max_open: int, give_up: Mapping[int, str]) -> object:
    return rules.on_trigger(view, f"not {run}", max_open, give_up)


def _reuse_ids(view: View, run: str, max_open: int, give_up: Mapping[int, str]) -> object:
    answer = rules.on_trigger(view, run, max_open, give_up)
    if isinstance(answer, rules.CreateEntry):
        return replace(answer, id=(answer.base or 0) + 1)
    return answer


def _highest_first(view: View, table: str, last: int | None) -> object:
    answer = rules.on_publish(view, table, last)
    if isinstance(answer, rules.Publish):
        owed = [e.id for e in view.entries if e.manifest is not None and e.manifest.tables[table].committables]
        return replace(answer, id=owed[-1])
    return answer


def _ignore_what_is_open(view: View) -> object:
    decided = tuple(entry if entry.decision is not None else _forged(entry) for entry in view.entries)
    answer = rules.on_rollback(replace(view, entries=decided))
    return _last_completed(view, answer)


CREDULOUS = frozenset({"believe the first contradiction"})

MUTATIONS = [
    # claiming an id
    Mutation("take the next free id", THREE_RUNS, "I1"),
    Mutation("overwrite plan", ONE_AT_A_TIME, "plan 1 was rewritten"),
    Mutation("reuse the id of an aborted entry", replace(ONE_AT_A_TIME, on_trigger=_reuse_ids), "I8"),
    Mutation("plan after aborts without re-reading", ONE_AT_A_TIME, "I1"),
    Mutation("ignore pendings instead of aborting", replace(ONE_AT_A_TIME, on_trigger=_ignore_pendings), "I1"),
    Mutation("base = last completed with k > 1", replace(TWO_AT_A_TIME, on_trigger=_base_is_last_completed), "I1"),
    Mutation("plan per run twice", replace(ONE_AT_A_TIME, on_trigger=_no_run_scan), "run A has checkpoint"),
    Mutation("ignore the run index", ONE_RUN_AGAIN, "has checkpoint"),
    Mutation("run index after the decision", ONE_RUN_AGAIN, "has checkpoint"),
    # acknowledging
    Mutation("overwrite ack", ONE_AT_A_TIME, "I6"),
    Mutation("ack per table", ONE_AT_A_TIME, "mixes attempts"),
    Mutation("content beside the ack", ONE_AT_A_TIME, "I4"),
    # deciding
    Mutation("complete on a pending base", replace(TWO_AT_A_TIME, on_completion=_complete_on("open")), "I"),
    Mutation("complete on an aborted base", replace(TWO_AT_A_TIME, on_completion=_complete_on("aborted")), "I"),
    Mutation("complete what is held", replace(HELD, on_completion=_complete_what_is_held), "nobody has approved"),
    Mutation("overwrite answer", HELD, "the answer to 1 was rewritten"),
    Mutation("overwrite decision", ONE_AT_A_TIME, "the decision of 1 was rewritten"),
    Mutation("decision not read back", ONE_AT_A_TIME, "I4"),
    # publishing
    Mutation("publish before decision", ONE_AT_A_TIME, "I4"),
    Mutation("publish without CAS", ONE_AT_A_TIME, "I1"),
    Mutation("n+1 before n", replace(ONE_AT_A_TIME, on_publish=_highest_first), "I"),
    Mutation("trust published.json", ONE_AT_A_TIME, "I1"),
    Mutation("read the log before the table", replace(WITH_PUBLISHER, broken=CREDULOUS), "should hold"),
    Mutation("believe the first contradiction", WITH_PUBLISHER, "a false alarm"),
    Mutation("read the log upwards", WITH_READER, "a false alarm"),
    Mutation("hint over what is not published", replace(THREE_RUNS, give_up=False), "I8"),
    # going back
    Mutation("roll back with undecided below", replace(ROLLED_BACK, on_rollback=_ignore_what_is_open), "is open"),
    Mutation("no fence commit on rollback", ROLLED_BACK, "I7"),
    Mutation("go on from where the last one ended", ROLLED_BACK, "I7"),
    Mutation("roll back on what is not durable", BACK_AND_POWER, "is open"),
    # intervals
    Mutation("read the log before the table", AN_HOUR_IS_EMPTIED, "in place of"),
    Mutation("publish a lower id of an interval", AN_HOUR_IS_EMPTIED, "left it"),
    Mutation("hint before the index", INTERVALS, "left it"),
    # power
    Mutation("plan on what is not durable", POWER, "the ledger is damaged"),
    Mutation("complete on what is not durable", POWER, "I"),
    Mutation("publish what is not durable", POWER, "I4"),
]
