"""`python -m tests.crash.matrix`: the crash matrix of the pipeline with four jobs, at every point of every run.

For each mode and each number of checkpoints at once the story is told undisturbed first, which names all points that
its runs pass. Then it is told once for each point and each fate (interleaved_processes.py): the tables must be right.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.crash.four_jobs import MODES, check, without_spark
from tests.crash.interleaved_processes import FATES, RUNS, Passing, story

AT_ONCE = (1, 3)
STEP = 200
"""After so many stories it says how far it is."""


class Case(NamedTuple):
    """One telling of the story."""

    mode: str
    k: int
    passing: Passing
    fate: str


def tell(root: Path, mode: str, k: int, passing: Passing | None = None, fate: str = "") -> str:
    """What is wrong in the end, in a fresh folder, which is removed."""
    shutil.rmtree(root, ignore_errors=True)
    try:
        with without_spark():
            theatre = story(root, mode, k, passing, fate)
            check(theatre.world, RUNS + (3 if fate == "zombie" else 2))
        return "" if passing is None or theatre.met else f"{passing} was never reached"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(root, ignore_errors=True)


def passings(root: Path, mode: str, k: int) -> list[Passing]:
    """All points of the story's own runs, in the order in which they are passed."""
    with without_spark():
        theatre = story(root, mode, k)
    shutil.rmtree(root)
    return [each for each in theatre.passings if each.task.startswith("run")]


def sample(root: Path, mode: str, k: int, every: int) -> list[Case]:
    """A short form of it: each so-manieth point, and one fate after the other."""
    found = passings(root, mode, k)
    return [Case(mode, k, each, FATES[n % len(FATES)]) for n, each in enumerate(found[::every])]


def cases(root: Path, modes: Sequence[str], fates: Sequence[str]) -> list[Case]:
    """The whole matrix."""
    found = []
    for mode, k in itertools.product(modes, AT_ONCE):
        found += [Case(mode, k, each, fate) for each in passings(root, mode, k) for fate in fates]
    return found


def _told(told: tuple[Path, Case]) -> tuple[Case, str]:
    folder, case = told
    return case, tell(folder / multiprocessing.current_process().name, *case)


def main() -> int:
    """Tell them all, and print those that go wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.matrix", description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=sorted(MODES), default=sorted(MODES))
    parser.add_argument("--fates", nargs="+", choices=FATES, default=list(FATES))
    parser.add_argument("--part", default="1/1", help="2/5: the second fifth of it")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        wanted = cases(Path(folder) / "first", options.modes, options.fates)[part - 1 :: parts]
        given = [(Path(folder), case) for case in wanted]
        wrong = 0
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:  # delta-rs does not survive a fork
            for number, (case, what) in enumerate(pool.imap_unordered(_told, given, chunksize=4), 1):
                if what:
                    wrong += 1
                    print(f"{case.mode}, k = {case.k}, {case.fate} at {tuple(case.passing)}: {what}", flush=True)
                if number % STEP == 0 or number == len(wanted):
                    seconds = time.monotonic() - began
                    print(f"{number:,} of {len(wanted):,} stories in {seconds:.0f} s: {wrong} went wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
