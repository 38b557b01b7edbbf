"""python -m tests.nexmark [q5 …]: each query on a million events cut in ten, and again with five kills, against DuckDB.

All processes that are killed are real ones: each continues in a folder where the last one left it, as `tidegate run`
does, and is killed at a random step of a checkpoint. They share one Spark server, as the pipelines of a machine do.
A hundredth of a percent of the bids is late, and must be left out of windows and joins, and nothing else.

Each query is told when it has ended, with the seconds it took, and kept in told.jsonl. Without `--continue` all begins
anew. With it, what an interrupted run has found equal is not run again: if the events, the kills and the code are the
same. A query that was interrupted begins anew, too.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.nexmark.generator import Events, side_input
from tests.kit.faults import Fault
from tests.kit.processes import die_with_parent
from tests.nexmark.playing import NAMES, Play, prepare
from tests.nexmark.reference import Reference
from tidegate import seams
from tidegate.testing import points_reached

ROOT = Path(__file__).resolve().parents[2]
CODE = ("include/tidegate", "jobs/nexmark", "tests/nexmark")
LATE = 0.0001
EACH_KILL = 2
"""A kill comes in the next checkpoint or the one after it: so there must be that many for each."""


def main() -> int:
    """Return 0 if all are equal, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m tests.nexmark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="QUERY", help="all, if none is named")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=10_000, help="events in a second; fewer need fewer for a window")
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--continue", dest="continued", action="store_true", help="not those that were equal before")
    parser.add_argument("--longest", type=float, default=900, help="seconds that a process may take; 900")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "nexmark")
    parser.add_argument("--child", nargs=3, metavar=("FOLDER", "POINT", "NTH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.names[0], Path(given.child[0]), given.child[1], int(given.child[2]))
        return 0
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no query {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if given.cuts < EACH_KILL * given.kills:
        parser.error(f"{given.kills} kills need --cuts {EACH_KILL * given.kills} or more")
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with alone(out):
        return all_of(given, out)


def all_of(given: argparse.Namespace, out: Path) -> int:
    """Run all queries that were asked for."""
    shape = {key: getattr(given, key) for key in ("events", "rate", "cuts", "seed")} | {"code": hash_of_code()}
    told = out / "told.jsonl"
    before = read(told) if given.continued else []
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not given.continued and path.name != "lock":
            path.unlink()
    landing = out / "landing"
    Events(given.events, given.seed, given.rate, LATE).write(landing, given.cuts)
    reference = Reference(landing, given.cuts)
    reference.side_input(side_input())
    began, ended, equal = time.monotonic(), 0, True
    todo = [(name, kills) for name in given.names or NAMES for kills in dict.fromkeys([0, given.kills])]
    for name, kills in todo:
        which = shape | {"query": name, "kills": kills}
        ended += 1
        if any(each["equal"] and which.items() <= each.items() for each in before):
            print(f"{name:4}  EQUAL  before, {kills} kills", flush=True)
            continue
        said = tell(name, out, landing, reference, kills, given)
        is_equal = said.startswith("EQUAL")
        equal &= is_equal
        print(f"{name:4}  {said}  ({ended}/{len(todo)}, {(time.monotonic() - began) / 60:.0f} min)", flush=True)
        with told.open("a") as file:
            file.write(json.dumps(which | {"equal": is_equal, "said": said}) + "\n")
    return 0 if equal else 1


def tell(name: str, out: Path, landing: Path, reference: Reference, kills: int, given: argparse.Namespace) -> str:
    """Run one query to its end, and say how it was. What is not equal stays, to be looked at."""
    dice = random.Random(f"{given.seed} {name}")
    play = Play(name, out / (f"{name}-killed" if kills else name))
    points = out / f"{name}.points"
    began = time.monotonic()
    killed: list[str] = []
    if kills and not points.exists():
        return "UNTOLD: without kills it did not come to its end"
    prepare(play.folder, landing)
    while len(killed) < kills:
        point, nth = drawn(dice, points, given.cuts)
        code = run(name, play.folder, point, nth, given.longest)
        if code != -signal.SIGKILL:
            return f"UNTOLD: {ended(code)} instead of being killed at {point}, see {play.folder / 'log'}"
        killed.append(point)
    if code := run(name, play.folder, "-", 0, given.longest):
        return f"FAILED: {ended(code)}, see {play.folder / 'log'}"
    if not kills:
        (play.folder / "points").rename(points)
    with play.opened() as running:
        entries = len(running.ledger.ids())
        wrong = play.differs(running, reference)
    how = f"killed at {', '.join(killed)}" if killed else "not killed"
    took = f"{entries:>3} entries  {time.monotonic() - began:5.1f} s  {how}"
    if wrong:
        return f"UNLIKE: {wrong}  {took}"
    shutil.rmtree(play.folder)
    return f"EQUAL  {reference.count(name):>8} rows  {took}"


def drawn(dice: random.Random, reached: Path, cuts: int) -> tuple[str, int]:
    """Draw a step of the next checkpoint or the one after it, from those that each checkpoint of a whole run has."""
    points = reached.read_text().split()
    point = dice.choice([point for point in points if points.count(point) >= cuts])
    return point, dice.randint(1, EACH_KILL * (points.count(point) // cuts))


def run(name: str, folder: Path, point: str, nth: int, longest: float) -> int | None:
    """Run a query in a process of its own until nothing is left, or it is killed. Return the exit code.

    None: it took too long, and was ended. It also ends if this process does.
    """
    command = [sys.executable, "-m", "tests.nexmark", name, "--child", str(folder), point, str(nth)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/include:{ROOT}", "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, preexec_fn=die_with_parent
        )
        try:
            return process.wait(longest)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()


def ended(code: int | None) -> str:
    """Say how a process ended."""
    return "the process did not end in time" if code is None else f"the process ended with {code}"


def child(name: str, folder: Path, point: str, nth: int) -> None:
    """Make checkpoints until nothing is left. point: where to die when it is passed for the nth time; "-": nowhere."""
    settings = {"spark.mode": "connect", "spark.conf.spark.sql.shuffle.partitions": "2"}
    with Play(name, folder).opened(settings=settings) as running:
        if point != "-":
            with seams.installed(Fault(point, "K", nth).installed(seams.current())):
                running.until_idle()
        else:
            with points_reached() as points:
                running.until_idle()
            (folder / "points").write_text("\n".join(points))


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keep others out of the folder."""
    with (out / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(
                f"somebody else runs queries in {out}: wait for it, or name another folder: --out"
            ) from None
        yield


def read(told: Path) -> list[Mapping[str, Any]]:
    """Return what was told before. A line that was not written to its end does not count."""
    lines = told.read_text().split("\n")[:-1] if told.exists() else []
    return [json.loads(line) for line in lines]


def hash_of_code() -> str:
    """Return a hash of what could make a difference."""
    files = sorted(file for folder in CODE for file in (ROOT / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
