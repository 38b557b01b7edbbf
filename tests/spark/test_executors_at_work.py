"""Spark does the work: by its own metrics every operator's rows are read, shuffled, computed and written in tasks of
executors, and none of them comes to the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kit.jvm import environment
from tests.kit.sampling import in_turn
from tests.spark.executors_at_work import CHECKPOINTS, KEYS, PAD_BYTES, ROWS, Work, noted, play_in
from tidegate.records.records import StepStats

pytestmark = in_turn(seconds=60)

OPERATORS = ("aggregate", "deduplicate", "window", "join")
ARRIVED = {"deduplicate": ROWS, "window": ROWS, "join": 2 * ROWS}
COMPUTED = ARRIVED | {"aggregate": KEYS}
"""The rows that a kernel gets at least."""
STORED = [
    dict.fromkeys(OPERATORS, 0),
    {"aggregate": KEYS, "deduplicate": ROWS, "window": 0, "join": 2 * ROWS},
]
"""Under the batch's keys, in each checkpoint. The second one has windows of its own."""
CHANGED = [
    {"aggregate": KEYS, "deduplicate": ROWS, "window": KEYS, "join": 2 * ROWS},
    {"aggregate": KEYS, "deduplicate": 0, "window": KEYS, "join": 2 * ROWS},
]


def played(folder: Path, master: str) -> list[list[tuple[StepStats, Work]]]:
    """For each checkpoint its steps, each with what Spark has noted of it."""
    command = [sys.executable, "-m", "tests.spark.executors_at_work", str(folder), master]
    ran = subprocess.run(
        command, env=dict(os.environ) | environment(), capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    works, play = noted(folder), play_in(folder)
    assert len(works) == CHECKPOINTS
    return [
        [(step, own.get(number, Work())) for number, step in enumerate(play.ack(id).stats.steps)]
        for id, own in enumerate(works, 1)
    ]


def of_operators(steps: list[tuple[StepStats, Work]]) -> dict[str, Work]:
    found = {step.name.removeprefix("state "): work for step, work in steps if step.name.startswith("state ")}
    assert set(found) == set(OPERATORS)
    return found


def check_rows_stay_away_from_the_driver(steps: list[tuple[StepStats, Work]]) -> None:
    """What tasks send there is much less than the rows, however well these are packed."""
    for step, work in steps:
        assert work.result_bytes < ROWS * PAD_BYTES / 10, step.name


def check_shuffled(name: str, rows: int) -> None:
    """rows: of the batch that were shuffled. Spark sums up an aggregate's before, so that each task has fewer."""
    if name == "aggregate":
        assert KEYS <= rows < ROWS
    else:
        assert rows == ARRIVED[name]


def test_on_a_cluster_executors_read_shuffle_compute_and_write_all_rows(tmp_path: Path) -> None:
    """Spark brings stored rows, and writes what has changed; both go through the shuffle, too."""
    for number, steps in enumerate(played(tmp_path, "local-cluster[2,1,1024]")):
        check_rows_stay_away_from_the_driver(steps)
        for name, work in of_operators(steps).items():
            assert work.tasks >= 2
            assert work.executors == {"0", "1"}, "both, and not the driver"
            stored, changed = STORED[number][name], CHANGED[number][name]
            check_shuffled(name, work.shuffled_rows - stored - changed)
            assert work.read_rows >= COMPUTED[name] + stored
            assert work.read_bytes >= PAD_BYTES * COMPUTED[name]
            assert work.python_bytes >= 2 * PAD_BYTES * COMPUTED[name], "each byte of it is two letters"
            assert work.written_rows == changed
            assert work.written_bytes > 0


def test_on_one_machine_the_batch_is_shuffled_and_tasks_do_all_else(tmp_path: Path) -> None:
    """Workers read and write the files of states themselves, so that nothing but the batch is shuffled."""
    for steps in played(tmp_path, "local[2]"):
        check_rows_stay_away_from_the_driver(steps)
        for name, work in of_operators(steps).items():
            assert work.tasks >= 2
            check_shuffled(name, work.shuffled_rows)
            assert work.read_rows >= COMPUTED[name]
            assert work.read_bytes >= PAD_BYTES * COMPUTED[name]
            assert work.python_bytes >= 2 * PAD_BYTES * COMPUTED[name]
            assert work.shuffled_bytes >= PAD_BYTES * COMPUTED[name]
            assert work.written_rows == 0, "by Spark"
