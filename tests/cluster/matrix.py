"""`python -m tests.cluster.matrix`: the crash matrix on a cluster whose workers share no disk, all in an object store.

A checkpoint is made undisturbed first, which names all points that it passes. Then the driver dies at each of them, and
each of the workers' faults happens: the tables must be right, and all files that they name be there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.cluster.failing import FAULTS, Failing, failing
from tidegate.testing import points_reached

LONGEST = 11
"""Checkpoints before the matrix, so that old ones retire, too."""


def cases(cluster: Failing) -> dict[str, Callable[[], object]]:
    """All cases, by their names."""
    with points_reached() as points:
        cluster.checkpoint()
    passed: Counter[str] = Counter()
    found: dict[str, Callable[[], object]] = {}
    for point in points:
        found[f"the driver dies at {point}, passed {passed[point]} times"] = partial(
            cluster.crash_at, point, passed[point]
        )
        passed[point] += 1
    return found | {f"a worker: {fault}": partial(cluster.checkpoint, fault) for fault in FAULTS}


def main() -> int:
    """Tell them all, and print those that go wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.matrix", description=__doc__)
    parser.add_argument("--part", default="1/1", help="2/5: the second fifth of it")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose name has it, such as: after ahead")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    began, wrong = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="tidegate-matrix-") as folder, failing(Path(folder)) as cluster:
        for _ in range(LONGEST):
            cluster.checkpoint()
        wanted = [(name, tell) for name, tell in cases(cluster).items() if options.only in name][part - 1 :: parts]
        for name, tell in wanted:
            try:
                tell()
                left = cluster.missing()
                what = f"the table names files that are not there: {sorted(left)}" if left else ""
            except (Exception, AssertionError) as error:
                what = f"{type(error).__name__}: {error}"
            wrong += bool(what)
            print(f"{time.monotonic() - began:6.0f} s  {name}: {what or 'right'}", flush=True)
    print(f"{len(wanted)} stories: {wrong} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
