"""The most memory that a driver ever had while it made a large state, and continued with it.

In a fresh process of its own: python -m tests.bench.memory FOLDER KEYS EVENTS CHECKPOINTS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.counting import QUICK_KEYS
from tests.bench.harness import ROOT, Options

HEAP = "2g"
"""What `spark.memory` is by default."""


def memory(options: Options) -> dict[str, float]:
    """Megabytes: of the driver (Python and JVM), and of the workers, with a state of 20 M keys."""
    keys, count = options.size(20_000_000, QUICK_KEYS), options.size(100_000, 200)
    checkpoints = options.size(4, 2)
    command = [sys.executable, "-m", "tests.bench.memory", str(options.folder("memory"))]
    command += [str(keys), str(count), str(checkpoints)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(folder: Path, keys: int, count: int, checkpoints: int) -> None:
    from tests.bench import spark
    from tests.bench.counting import Counting, events, spread

    spark.MEMORY = HEAP
    options = Options(out=folder)
    world = Counting(folder / "world", "local")
    world.land(0, events(options, 0, "id AS k", keys, folder / "made"))
    world.checkpoint()
    made = peaks()
    for number in range(1, checkpoints):
        world.land(number, events(options, number, spread(number, count, keys), count, folder / f"made-{number}"))
        world.checkpoint()
    print(json.dumps({"driver_mb_20m": peaks()[0], "driver_mb_made_20m": made[0], "workers_mb_20m": peaks()[1]}))


def peaks() -> tuple[float, float]:
    """The most that this process and its JVM have had so far, and all others below them, in megabytes."""
    me = os.getpid()
    drivers = [me, *(pid for pid in everything(me)[1:] if name_of(pid) == "java")]
    others = [pid for pid in everything(me) if pid not in drivers]
    return sum(map(peak, drivers)), sum(map(peak, others))


def everything(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(each for child in below(pid) for each in everything(child))]


def below(pid: int) -> list[int]:
    """The children of a process; none if it is gone."""
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it ends
        return []
    return [int(child) for text in texts for child in text.split()]


def name_of(pid: int) -> str:
    """The program that a process runs."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def resident(pid: int) -> float:
    """The memory that a process has now, in megabytes; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def peak(pid: int) -> float:
    """The most memory that a process ever had, in megabytes; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    found = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return found[0] / 1024 if found else 0.0


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
