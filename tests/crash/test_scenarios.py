"""Scenarios of docs/reliability.md that need a whole pipeline, by number. The others stand beside what they test:
3, 6, 8, 15, 18, 19, 20 under tests/unit; 4, 5, 10, 23 with the tables; 16 and 19 with the sources.
"""

from __future__ import annotations

import json

from deltalake import DeltaTable

from tests.crash.harness import Crew, finish
from tests.crash.world import CrashWorld, check, rows_of


def versions_of(world: CrashWorld, table: str, checkpoint: int) -> list[int]:
    """The table's versions that carry the checkpoint's id."""
    history = DeltaTable(str(world.root / "tables" / table)).history()
    return [commit["version"] for commit in history if commit.get("tidegate.checkpoint") == checkpoint]


def test_scenario_2_publish_applied_and_response_lost(crew: Crew, world: CrashWorld) -> None:
    """The commit is on the table, the process that made it is dead, and everything starts anew: no duplicate."""
    crew.start(world, "three", fault=("S10.publish.after", "K", 1)).ended()
    assert len(versions_of(world, "log", 3)) == 1, "it was applied"
    finish(crew, world, 4)
    assert len(versions_of(world, "log", 3)) == 1, "and is not applied again"


def test_scenario_3_completed_but_killed_before_the_publish(crew: Crew, world: CrashWorld) -> None:
    """The next run arrives first: it publishes n, then plans n + 1."""
    crew.start(world, "three", fault=("S9.decision.after", "K", 1)).ended()
    assert versions_of(world, "log", 3) == []
    assert crew.run(world, "four") == [None], "nothing new to read, but what is owed is published"
    assert len(versions_of(world, "log", 3)) == 1
    check(world, 3)


def test_scenario_9_killed_worker_whose_child_lives_on(crew: Crew, world: CrashWorld) -> None:
    """The retry overlaps the first try, which then acks: its ack is too late, and its files go."""
    zombie = crew.start(world, "three", fault=("S6.ack.before", "Z", 1))
    zombie.reached()
    crew.run(world, "three")
    assert zombie.resume() == 0, "too late is not an error: what it wanted is done"
    check(world, 3)
    ledger = world.coordinator().ledger
    folder = world.root / "tables" / "log" / "tidegate" / f"{ledger.start().uid}-log" / "00000003"
    entry = ledger.entry(3)
    assert entry is not None
    assert [path.name for path in folder.iterdir()] == [entry.acks["main"].ack.attempt], "one attempt's files are left"


def test_scenario_16_a_source_file_is_rewritten_after_the_plan(crew: Crew, world: CrashWorld) -> None:
    """The plan names its bytes. Other bytes are refused before anything is written, with the file's name."""
    crew.start(world, "three", fault=("S2.run.after", "K", 1)).ended()
    planned = world.root / "landing" / "events-0002.json"
    before = planned.read_text()
    planned.write_text(before.replace('"0.25"', '"0.26"').replace(".25", ".26"))
    refused = crew.start(world, "three")
    assert refused.ended() != 0
    assert "events-0002.json" in refused.log()
    assert [row for row in world.table("log") if row["id"] in {r["id"] for r in rows_of(2)}] == []
    planned.write_text(before)
    crew.run(world, "three")
    check(world, 3)


def test_scenario_17_nondeterministic_stage_retried_after_part_was_staged(crew: Crew, world: CrashWorld) -> None:
    """The first table's rows were staged, then the attempt died. Only the second attempt's marks are anywhere."""
    crew.start(world, "three", fault=("S4.stage.before", "K", 2)).ended()
    crew.run(world, "three")
    check(world, 3)  # compares the marks of both tables


def test_a_malformed_record_fails_the_checkpoint_and_says_where(crew: Crew, world: CrashWorld) -> None:
    path = world.root / "landing" / "events-0002.json"
    good = path.read_text()
    path.write_text(good + "{not json\n")
    failed = crew.start(world, "three")
    assert failed.ended() != 0
    assert "events-0002.json" in failed.log()
    path.write_text(good)
    finish(crew, world, 4)


def test_the_records_of_a_checkpoint_can_be_read_by_anyone(world: CrashWorld) -> None:
    """JSON with the format first: readable with `cat`, and nobody needs tidegate for it."""
    for path in (world.root / "ledger").rglob("*.json"):
        if not {"blobs", "_delta_log"} & set(path.parts):
            assert next(iter(json.loads(path.read_text()))) == "format", path
