"""The worlds that are explored. Crashes and zombies need no mention: any process may stay behind anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tests.model.facts import Shape
from tests.model.world import BY_HAND, PUBLISH, RETENTION, ROLLBACK, Actor, ModelWorld

ONE_TABLE = Shape(((0,),), tables=1)
TWO_JOBS = Shape(((0,), (1,)), tables=2, gaps=True)

SAME_HOUR = Shape(((0,),), tables=1, intervals=(("A", 0), ("B", 0), ("C", 1)))
SAME_HOUR_EMPTY = SAME_HOUR._replace(without_rows="B")
TWO_TABLES_BY_HOUR = SAME_HOUR._replace(jobs=((0, 1),), tables=2)

A1, A2, A3 = Actor("a1", "A"), Actor("a2", "A"), Actor("a3", "A")
B1, C1 = Actor("b1", "B"), Actor("c1", "C")
BACK, BACK2 = Actor("r", "-", ROLLBACK), Actor("r2", "-", ROLLBACK)
PUBLISHER = Actor("p", "-", PUBLISH)
READER = Actor("p", "-", PUBLISH, careful=True)

ONE_AT_A_TIME = ModelWorld((A1, A2, B1), max_open=1)
TWO_AT_A_TIME = ModelWorld((A1, A2, B1), max_open=2)
THREE_RUNS = ModelWorld((A1, B1, C1), max_open=2, shape=ONE_TABLE)
ONE_RUN_AGAIN = ModelWorld((A1, A2, A3, B1), give_up=False, shape=ONE_TABLE)
WITH_PUBLISHER = ModelWorld((A1, B1, PUBLISHER), max_open=2, max_ids=2, shape=ONE_TABLE)
WITH_READER = ModelWorld((A1, B1, READER), max_open=2, max_ids=2)
POWER = ModelWorld((A1, A2, B1), max_open=2, max_ids=2, power_losses=1, shape=ONE_TABLE)
HELD = ModelWorld((A1, A2, B1), max_open=2, max_ids=2, shape=ONE_TABLE._replace(held=True))
ROLLED_BACK = ModelWorld((A1, B1, BACK), max_open=1, max_ids=4, shape=ONE_TABLE, give_up=False)
TWICE_BACK = replace(ROLLED_BACK, actors=(A1, B1, BACK, BACK2))
BACK_AND_POWER = replace(ROLLED_BACK, max_ids=3, power_losses=1)
INTERVALS = ModelWorld((A1, B1, C1), max_open=2, shape=SAME_HOUR)
AN_HOUR_IS_EMPTIED = ModelWorld((A1, B1, PUBLISHER), max_open=2, max_ids=2, shape=SAME_HOUR_EMPTY)

L1, L2, OTHER = Actor("l1", "line0", ("LB", 0)), Actor("l2", "line0", ("LB", 0)), Actor("m", "line1", ("LB", 1))
DISCARD, DISCARD2 = Actor("d", "-", ("DB", 0)), Actor("d2", "-", ("DB", 0))
RETIRER = Actor("g", "-", RETENTION)

CLOCKS = (1, 2, 5, 3, 6, 4, 7)
"""The clocks of some machines are behind."""
HAND = Actor("h", BY_HAND)

LINE = ModelWorld((A1, L1), max_ids=4, shape=ONE_TABLE, give_up=False, begun=2, line_count=1, clocks=CLOCKS)
LINE_TWICE = replace(LINE, actors=(A1, L1, L2))
LINE_TORN = replace(LINE, actors=(A1, L1._replace(careful=True), L2))
LINE_AND_ROLLBACK = replace(LINE, actors=(A1, L1, BACK))
LINE_SWAPPED_TWICE = replace(LINE, actors=(L1, L2, BACK), max_ids=5)
LINE_DISCARDED = replace(LINE, actors=(A1, L1, DISCARD))
LINE_BACK_AND_DISCARDED = replace(LINE, actors=(L1, BACK, DISCARD))
LINE_AND_RETENTION = replace(LINE, actors=(A1, L1, DISCARD, RETIRER), max_ids=5)
LINE_BEGUN_TWICE = replace(LINE, actors=(L1, L2, RETIRER), max_ids=3)
LINE_FROM_SAVEPOINT = replace(LINE, actors=(L1, RETIRER, A1), begun=3, savepoints=(1,), max_ids=5)
LINE_FROM_NOTHING = replace(LINE, actors=(L1, BACK, RETIRER), origins=(0,))
LINE_AND_POWER = replace(LINE, actors=(A1, L1), power_losses=1)
LINE_DISCARD_AND_POWER = replace(LINE, actors=(L1, DISCARD, DISCARD2), power_losses=1)
LINE_AHEAD = replace(LINE, ahead=2, max_ids=7)
LINE_GAPS = replace(LINE, shape=TWO_JOBS)
TWO_LINES = replace(LINE, actors=(A1, L1, OTHER), line_count=2, max_ids=5, origins=(1, 2))

LINE_RECORDED = replace(LINE, recorded=True, begun=3, max_ids=5, actors=(A1, L1, BACK))
LINE_HELD = replace(LINE, begun=3, max_ids=5, holds=("", "a person", "the time limit"))
LINE_HELD_RECORDED = replace(LINE_HELD, recorded=True)
LINE_HELD_MENDED = replace(LINE_HELD_RECORDED, holds=("", "new rows", "a person"))
LINE_AND_HAND = replace(LINE, actors=(A1, HAND, L1), max_ids=5)
LINE_AND_HAND_RECORDED = replace(LINE_AND_HAND, recorded=True)


WITH_QUARANTINE = Shape(((0,),), tables=2, quarantine=True)
V1, V2 = Actor("v1", "V", ("V",)), Actor("v2", "W", ("V",))

DIVERTED = ModelWorld((A1, PUBLISHER, V1), max_ids=4, shape=WITH_QUARANTINE, give_up=False)
DIVERTED_IN_PARTS = replace(DIVERTED, shape=WITH_QUARANTINE._replace(in_parts=True))
DIVERTED_BESIDE = replace(DIVERTED, actors=(A1, B1, PUBLISHER, V1), max_ids=3)
DIVERTED_TWICE = replace(DIVERTED, actors=(V1, V2), begun=2, unpublished=2)
DIVERTED_AND_BACK = replace(DIVERTED, actors=(A1, V1, BACK), begun=2, max_ids=5)
DIVERTED_AND_POWER = replace(DIVERTED, actors=(A1, V1), begun=1, unpublished=1, max_ids=3, power_losses=1)


class Exploration(NamedTuple):
    """A world in which nothing may be wrong, and how many states it has at least: it must not shrink unseen."""

    name: str
    world: ModelWorld
    at_least: int
    what: str


SMALL = [
    Exploration("one at a time", replace(ONE_AT_A_TIME, max_ids=2), 90_000, "doubled run A, run B, k = 1, 2 ids"),
    Exploration("two at a time", TWO_AT_A_TIME, 700_000, "doubled run A, run B, k = 2, 3 ids"),
    Exploration("three runs", THREE_RUNS, 370_000, "runs A, B and C, k = 2, 3 ids, one table"),
    Exploration(
        "two jobs",
        ModelWorld((A1, B1, C1), shape=TWO_JOBS, max_open=2, give_up=False),
        160_000,
        "runs A, B and C, k = 2, a job and an ack per table, some with nothing to publish",
    ),
    Exploration("held", HELD, 100_000, "doubled run A, run B, k = 2, 2 ids, every checkpoint waits for an answer"),
    Exploration("torn reads", WITH_READER, 200_000, "runs A and B, a publisher that reads entry by entry"),
    Exploration("intervals", INTERVALS, 400_000, "an hour by runs A and B, another by C, k = 2, 3 ids, one table"),
    Exploration("an hour is emptied", AN_HOUR_IS_EMPTIED, 15_000, "an hour by run A, without rows by B, a publisher"),
    Exploration(
        "hours and power loss",
        ModelWorld((A1, B1), max_open=2, max_ids=2, power_losses=1, shape=TWO_TABLES_BY_HOUR),
        20_000,
        "an hour by runs A and B, two tables, power may fail at any step",
    ),
    Exploration("rolled back", ROLLED_BACK, 50_000, "runs A and B, a rollback to any checkpoint at any time, 4 ids"),
    Exploration(
        "rolled back twice", replace(TWICE_BACK, actors=(A1, BACK, BACK2)), 5_000, "run A, two rollbacks at any time"
    ),
    Exploration(
        "rolled back and power loss", BACK_AND_POWER, 180_000, "runs A and B, a rollback, power may fail at any step"
    ),
    Exploration("power loss", POWER, 230_000, "doubled run A, run B, k = 2, power may fail at any step"),
    Exploration("diverted", DIVERTED, 28_000, "run A, a publisher, a divert of what waits"),
    Exploration(
        "diverted in parts",
        DIVERTED_IN_PARTS,
        35_000,
        "run A, a publisher, a divert, a table that takes parts of entries",
    ),
    Exploration("diverted twice", DIVERTED_TWICE, 1_000, "two diverts of two checkpoints that wait"),
    Exploration(
        "diverted and rolled back", DIVERTED_AND_BACK, 190_000, "run A, a divert, a rollback to any checkpoint, 5 ids"
    ),
    Exploration("diverted and power loss", DIVERTED_AND_POWER, 1_000, "run A, a divert, power may fail at any step"),
    Exploration("line, torn reads", LINE_TORN, 50_000, "run A, a line by two processes, one of which reads slowly"),
    Exploration("line and rollback", LINE_AND_ROLLBACK, 34_000, "run A, a line, a rollback to any checkpoint"),
    Exploration(
        "line, rollback and retention",
        replace(LINE, actors=(L1, BACK, DISCARD, RETIRER)),
        49_000,
        "a line, its discard, a rollback and retention at any time",
    ),
    Exploration("line and retention", LINE_AND_RETENTION, 30_000, "run A, a line, its discard and retention, 5 ids"),
    Exploration("line begun twice", LINE_BEGUN_TWICE, 2_000, "a line by two processes, retention"),
    Exploration("line from a savepoint", LINE_FROM_SAVEPOINT, 5_000, "run A, a line from an old savepoint, retention"),
    Exploration(
        "line from the beginning",
        replace(LINE, actors=(A1, L1, BACK), origins=(0,), begun=1, max_ids=3),
        19_000,
        "run A, a line that begins with nothing, a rollback",
    ),
    Exploration(
        "line, recorded cuts", LINE_RECORDED, 45_000, "run A, a line that cuts its input as it was recorded, a rollback"
    ),
    Exploration("line with holds", LINE_HELD, 1_300, "run A, a line whose checkpoints gates hold, as they held live's"),
    Exploration(
        "line with holds, recorded cuts", LINE_HELD_RECORDED, 600, "run A, a line whose holds may carry approvals"
    ),
    Exploration(
        "line with holds, mended code", LINE_HELD_MENDED, 600, "run A, a line whose code makes other rows of one"
    ),
    Exploration("line and a change by hand", LINE_AND_HAND, 40_000, "run A, a change by hand, a line"),
    Exploration(
        "line and a change by hand, recorded cuts",
        LINE_AND_HAND_RECORDED,
        24_000,
        "run A, a change by hand, a line that cuts its input as it was recorded",
    ),
    Exploration("line, k = 2", replace(LINE, actors=(A1, B1, L1), max_open=2), 15_000, "runs A and B, k = 2, a line"),
    Exploration(
        "line ahead, two tables",
        replace(LINE_AHEAD, shape=TWO_JOBS),
        2_000,
        "run A, a line with higher numbers, a job and an ack per table, some with nothing to publish",
    ),
    Exploration("two lines", replace(TWO_LINES, origins=(2,)), 24_000, "run A, two lines from one checkpoint, 5 ids"),
    Exploration("line and power loss", LINE_AND_POWER, 5_000, "run A, a line, power may fail at any step"),
    Exploration(
        "line, discards and power loss",
        LINE_DISCARD_AND_POWER,
        11_000,
        "a line, two discards of it, power may fail at any step",
    ),
]

LARGE = [
    Exploration(
        "diverted beside another run", replace(DIVERTED, actors=(A1, B1, V1)), 200_000, "runs A and B, a divert, 4 ids"
    ),
    Exploration(
        "diverted twice beside a publisher",
        replace(DIVERTED_TWICE, actors=(PUBLISHER, V1, V2)),
        740_000,
        "a publisher, two diverts of two checkpoints that wait",
    ),
    Exploration(
        "diverted twice and rolled back",
        replace(DIVERTED_TWICE, actors=(V1, V2, BACK), begun=3, max_ids=6),
        10_000,
        "two diverts, a rollback to any checkpoint",
    ),
    Exploration(
        "rolled back, k = 2",
        replace(ROLLED_BACK, give_up=True, max_open=2),
        200_000,
        "runs A and B, a rollback, k = 2, 4 ids, anybody may be given up",
    ),
    Exploration(
        "rolled back, power loss, 3 ids",
        replace(BACK_AND_POWER, give_up=True),
        290_000,
        "runs A and B, a rollback, 3 ids, power may fail at any step",
    ),
    Exploration("rolled back twice, runs A and B", TWICE_BACK, 400_000, "runs A and B, two rollbacks, 4 ids"),
    Exploration(
        "rolled back, two tables",
        replace(ROLLED_BACK, shape=TWO_JOBS),
        100_000,
        "a job and an ack per table, a rollback",
    ),
    Exploration(
        "line and rollback, 5 ids", replace(LINE_AND_ROLLBACK, max_ids=5), 200_000, "run A, a line, a rollback"
    ),
    Exploration("line, twice, and rollback", LINE_SWAPPED_TWICE, 130_000, "a line by two processes, a rollback, 5 ids"),
    Exploration(
        "run, line, twice, and rollback",
        replace(LINE_SWAPPED_TWICE, actors=(A1, L1, L2, BACK), max_ids=4),
        700_000,
        "run A, a line by two processes, a rollback, 4 ids",
    ),
    Exploration(
        "line and two rollbacks",
        replace(LINE, actors=(L1, BACK, BACK2), max_ids=5),
        210_000,
        "a line, two rollbacks to any checkpoint at any time, 5 ids",
    ),
    Exploration("two lines from two checkpoints", TWO_LINES, 100_000, "run A, two lines, 5 ids"),
    Exploration("runs A and B, a line", replace(LINE, actors=(A1, B1, L1), max_ids=5), 55_000, "5 ids"),
    Exploration(
        "two lines and rollback",
        replace(TWO_LINES, actors=(L1, OTHER, BACK), origins=(1,)),
        85_000,
        "two lines, a rollback, 5 ids",
    ),
    Exploration(
        "line from the beginning, and retention",
        replace(LINE, actors=(A1, L1, DISCARD, RETIRER), origins=(0,)),
        80_000,
        "run A, a line that begins with nothing, its discard and retention",
    ),
    Exploration(
        "line from the beginning, rollback and retention",
        replace(LINE_FROM_NOTHING, actors=(L1, BACK, DISCARD, RETIRER)),
        30_000,
        "a line that begins with nothing, its discard, a rollback and retention",
    ),
    Exploration(
        "run, line, discard and power loss",
        replace(LINE_DISCARDED, max_ids=5, power_losses=1),
        100_000,
        "run A, a line and its discard, power may fail at any step",
    ),
    Exploration(
        "run, line, rollback, discard and retention",
        replace(LINE, actors=(A1, L1, BACK, DISCARD, RETIRER)),
        1_900_000,
        "run A, a line, its discard, a rollback and retention at any time, 4 ids",
    ),
    Exploration("one at a time, 3 ids", ONE_AT_A_TIME, 650_000, "doubled run A, run B, k = 1, 3 ids"),
    Exploration("again and again", ONE_RUN_AGAIN, 470_000, "run A three times, run B, 3 ids, one table"),
    Exploration(
        "three runs, two tables", ModelWorld((A1, B1, C1), max_open=2), 800_000, "runs A, B and C, k = 2, 3 ids"
    ),
    Exploration(
        "power loss, 3 ids", replace(POWER, max_ids=3), 2_500_000, "doubled run A, run B, k = 2, power may fail once"
    ),
    Exploration(
        "power loss twice",
        replace(POWER, power_losses=2, actors=(A1, B1)),
        300_000,
        "runs A and B, k = 2, power fails twice",
    ),
    Exploration(
        "torn reads everywhere",
        ModelWorld((A1._replace(careful=True), B1._replace(careful=True), PUBLISHER), max_open=2, shape=ONE_TABLE),
        300_000,
        "every reader reads entry by entry",
    ),
    Exploration(
        "four processes",
        ModelWorld((A1, A2, B1, C1), max_open=2, shape=ONE_TABLE, give_up=False),
        1_000_000,
        "doubled run A, runs B and C, k = 2, 3 ids, one table",
    ),
]
