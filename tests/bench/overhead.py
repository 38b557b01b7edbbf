"""The control plane alone: trigger, three acks, decide, publish three Delta tables. No rows move, no JVM runs.

It runs in a process of its own that imports only what the control plane needs, so that its memory means something.
Beside the budget: the same checkpoint on tables that hold many files already, in turn with the small ones.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.control import ATTEMPT, checkpoint, coordinator
from tests.bench.harness import ROOT, Budget, Options, Result, in_turn, median_of, timed
from tests.kit.limits import Limits
from tidegate.records.records import Json

SINKS = ("orders", "revenue", "totals")
SMALL, LARGE = "small", "large"
WARMUPS = 2
FORBIDDEN = ("pyspark", "py4j", "pyarrow", "pandas", "airflow", "great_expectations")


def run(options: Options) -> Result:
    root = options.folder("overhead")
    counted = 4 * options.pairs
    files, commits = options.size(20_000, 20), options.size(85, 3)
    rounds = {SMALL: 1 + WARMUPS + counted + WARMUPS + options.pairs, LARGE: WARMUPS + options.pairs}
    for name, count in rounds.items():
        prepare(root / name, count, (files, commits) if name == LARGE else None)
    found = in_fresh_process(root, counted, options.pairs)
    wrong = [f"{name} was imported" for name in found["imported"]] + found["children"]
    wrong += differs(root / SMALL, rounds[SMALL])
    parts = found["parts"]
    return Result(
        "overhead",
        ours_s=found["ours_s"],
        pairs=counted,
        equal=not wrong,
        wrong="; ".join(wrong),
        keys={
            "rss_mb": found["rss_mb"],
            "cold_s": found["cold_s"],
            "parts": parts,
            "growth_large_tables": found["growth"],
            "large_tables": f"{files} files, {commits} commits to replay",
        },
        budgets=(Budget("ours_s", 0.150), Budget("rss_mb", 250)),
    )


def prepare(root: Path, checkpoints: int, history: tuple[int, int] | None) -> None:
    """Stage tiny files for so many checkpoints, as jobs would have. history: of the tables; None: there are none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tidegate.connectors.delta.sink.table import StagedBatch
    from tidegate.connectors.sink import Staging
    from tidegate.delta import locate, sync_and_list

    control = coordinator(root, SINKS, Limits())
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    committables: list[dict[str, Json]] = []
    for number in range(1, checkpoints + 1):
        committables.append({})
        for sink in SINKS:
            context = control.context(sink)
            location = locate(context.place, f"tables/{sink}")
            folder = Staging(number, ATTEMPT).folder(context)
            location.local(folder).mkdir(parents=True)
            pq.write_table(pa.table({"id": [number]}), location.local(folder) / "part-00000.parquet")
            batch = StagedBatch(columns=schema, files=sync_and_list(location, folder, schema, written=1))
            committables[-1][sink] = msgspec.to_builtins(batch)
    (root / "committables.json").write_text(json.dumps(committables))
    if history:
        for sink in SINKS:
            make_history(root, sink, schema, *history)


def make_history(root: Path, sink: str, schema: Json, files: int, commits: int) -> None:
    """A table whose log names many files (they need not exist, for nobody reads them) and has many commits to
    be replayed: almost up to Delta's own next checkpoint, which comes every hundred."""
    from deltalake import DeltaTable

    from tidegate.delta import CommitStamp, StagedFile, append, create, locate, open_table
    from tidegate.records.place import Place

    def file(number: int) -> StagedFile:
        return StagedFile(path=f"old/{number:08d}/part-00000.parquet", size=999, rows=1, stats='{"numRecords":1}')

    def stamp(number: int) -> CommitStamp:
        return CommitStamp("history", number, "history", 0, ATTEMPT, ("history-owner", 0))

    location = locate(Place(str(root)), f"tables/{sink}")
    assert create(location, schema, [file(number) for number in range(files)], stamp(0))
    DeltaTable(location.url).create_checkpoint()
    for number in range(1, commits):
        table = open_table(location)
        assert table is not None
        assert append(table, [file(files + number)], stamp(number))


def in_fresh_process(root: Path, counted: int, pairs: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.overhead", str(root), str(counted), str(pairs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the control plane's process failed:\n{done.stderr}")
    return dict(json.loads(done.stdout))


def measure(root: Path, counted: int, pairs: int) -> dict[str, Any]:
    """What the fresh process does: cold, warm, then small and large tables in turn."""
    small, large = StagedPipeline(root / SMALL), StagedPipeline(root / LARGE)
    cold = timed(small.next)
    rounds = [small.next() for _ in range(WARMUPS + counted)][WARMUPS:]
    parts = median_of(rounds)
    rss = peak_memory_mb()
    imported = [name for name in FORBIDDEN if name in sys.modules]
    children = child_processes()
    growth = in_turn(lambda _: timed(large.next), lambda _: timed(small.next), warmups=WARMUPS, pairs=pairs)
    return {
        "ours_s": sorted(sum(each.values()) for each in rounds)[len(rounds) // 2],
        "cold_s": cold,
        "rss_mb": rss,
        "parts": parts,
        "growth": growth.wall().ratio,
        "imported": imported,
        "children": children,
    }


class StagedPipeline:
    """A pipeline whose files are staged; each call of `next` makes one checkpoint of them."""

    def __init__(self, root: Path) -> None:
        self.control = coordinator(root, SINKS, Limits())
        self.committables = iter(json.loads((root / "committables.json").read_text()))

    def next(self) -> dict[str, float]:
        return checkpoint(self.control, next(self.committables))


def peak_memory_mb() -> float:
    """The most that this process ever held. (getrusage would also tell what its parent held when it forked.)"""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)  # macOS: in bytes


def child_processes() -> list[str]:
    """Processes that this one has started: there must be none, above all no JVM."""
    try:
        pids = Path("/proc/self/task").glob("*/children")
        return [f"it started process {pid}" for found in pids for pid in found.read_text().split()]
    except OSError:
        return []  # no /proc here; that nothing was imported that could start one is checked all the same


def differs(root: Path, checkpoints: int) -> list[str]:
    """Every table holds the row of every checkpoint, once, in order."""
    from deltalake import DeltaTable

    wrong = []
    for sink in SINKS:
        table = DeltaTable(str(root / "tables" / sink))
        ids = sorted(table.to_pyarrow_table()["id"].to_pylist())
        if ids != list(range(1, checkpoints + 1)):
            wrong.append(f"{sink} holds the rows {ids}, not one of each of {checkpoints} checkpoints")
        if (told := [int(c["tidegate.checkpoint"]) for c in reversed(table.history())]) != sorted(set(told)):
            wrong.append(f"{sink} took the checkpoints in the order {told}")
    return wrong


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
