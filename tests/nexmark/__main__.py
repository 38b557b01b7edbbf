"""python -m tests.nexmark [q5 …]: each query on a million events cut in ten, and again with five kills, against DuckDB.

All processes that are killed are real ones: each continues in a folder where the last one left it, as `tidegate run`
does, and is killed at a random step of a checkpoint. They share one Spark server, as the pipelines of a machine do.
A hundredth of a percent of the bids is late, and must be left out of windows and joins, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from jobs.nexmark.generator import Events
from tests.kit.faults import Fault
from tests.nexmark.playing import NAMES, Play, prepare, side_input
from tests.nexmark.reference import Reference
from tidegate import seams
from tidegate.testing import points_reached

ROOT = Path(__file__).resolve().parents[2]
LATE = 0.0001


def main() -> int:
    """Return 0 if all are equal, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m tests.nexmark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="QUERY", help="all, if none is named")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=10_000, help="events in a second; fewer need fewer for a window")
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "nexmark")
    parser.add_argument("--child", nargs=3, metavar=("FOLDER", "POINT", "NTH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.names[0], Path(given.child[0]), given.child[1], int(given.child[2]))
        return 0
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no query {', '.join(unknown)}; there are {', '.join(NAMES)}")
    out = given.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    landing = out / "landing"
    Events(given.events, given.seed, given.rate, LATE).write(landing, given.cuts)
    reference = Reference(landing, given.cuts)
    reference.side_input(side_input())
    equal = True
    for name in given.names or NAMES:
        for kills in dict.fromkeys([0, given.kills]):
            told = tell(name, out, landing, reference, kills, random.Random(f"{given.seed} {name}"))
            print(told, flush=True)
            equal &= "EQUAL" in told
    return 0 if equal else 1


def tell(name: str, out: Path, landing: Path, reference: Reference, kills: int, dice: random.Random) -> str:
    """Run one query to its end, and say how it went."""
    play = Play(name, out / (f"{name}-killed" if kills else name))
    prepare(play.folder, landing)
    began, killed = time.monotonic(), []
    while len(killed) < kills:
        point, nth = drawn(dice, out / name / "points")
        code = run(name, play.folder, point, nth)
        if code != -signal.SIGKILL:
            return f"{name:4}  UNTOLD: the process ended with {code} instead of being killed at {point}"
        killed.append(point)
    code = run(name, play.folder, "-", 0)
    if code:
        return f"{name:4}  FAILED: the process ended with {code}"
    with play.opened() as running:
        entries = len(running.ledger.ids())
        wrong = play.differs(running, reference)
    how = f"killed at {', '.join(killed)}" if killed else "not killed"
    said = f"UNLIKE: {wrong}" if wrong else f"EQUAL  {reference.count(name):>8} rows"
    return f"{name:4}  {said}  {entries:>3} entries  {time.monotonic() - began:5.1f} s  {how}"


def drawn(dice: random.Random, reached: Path) -> tuple[str, int]:
    """Draw a step of the next checkpoint or the one after it, from those that a whole run has come to."""
    points = reached.read_text().split()
    point = dice.choice(points)
    each = max(1, points.count(point) // points.count("S1.entry.after"))
    return point, dice.randint(1, 2 * each)


def run(name: str, folder: Path, point: str, nth: int) -> int:
    """Run a query in a process of its own until nothing is left, or it is killed. Return the exit code."""
    command = [sys.executable, "-m", "tests.nexmark", name, "--child", str(folder), point, str(nth)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/include:{ROOT}", "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
    with (folder / "log").open("a") as log:
        return subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log).returncode


def child(name: str, folder: Path, point: str, nth: int) -> None:
    """Make checkpoints until nothing is left. point: where to die when it is passed for the nth time; "-": nowhere."""
    settings = {"spark.mode": "connect", "spark.conf.spark.sql.shuffle.partitions": "2"}
    with Play(name, folder).opened(settings=settings) as running:
        if point != "-":
            with Fault(point, "K", nth).installed(seams.current()) as installed, seams.installed(installed):
                running.until_idle()
        else:
            with points_reached() as points:
                running.until_idle()
            (folder / "points").write_text("\n".join(points))


if __name__ == "__main__":
    sys.exit(main())
