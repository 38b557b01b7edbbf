"""`python -m tests.simulation --seeds 20000`: many days; `--seed N --trace`: one day, told from beginning to end."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
import time

from tests.simulation.simulate import KINDS, simulate_many, simulate_seed

CHUNK = 50
SHOWN = 10


def main() -> int:
    """Simulate, and print the seeds of the days on which an invariant broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many days")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--kind", choices=list(KINDS), default="life", help="what kind of days")
    parser.add_argument("--trace", action="store_true", help="with --seed: the whole story")
    options = parser.parse_args()
    if options.seed is not None:
        return _one(options.seed, options.trace, options.kind)
    return _many(range(options.start, options.start + options.seeds), options.jobs, options.kind)


def _one(seed: int, trace: bool, kind: str) -> int:
    day = simulate_seed(seed, kind)
    if trace:
        print(day.story())
    print(f"seed {seed}: {len(day.events):,} events, {day.checkpoints} checkpoints, {day.completed} completed")
    print(f"digest {day.digest()}")
    print(day.problem or "all invariants hold")
    return 1 if day.problem else 0


def _many(seeds: range, jobs: int, kind: str) -> int:
    began = time.monotonic()
    chunks = [seeds[first : first + CHUNK] for first in range(0, len(seeds), CHUNK)]
    bad, events, completed, days = 0, 0, 0, 0
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for summaries in pool.imap_unordered(functools.partial(simulate_many, kind=kind), chunks):
            for summary in summaries:
                days, events, completed = days + 1, events + summary.events, completed + summary.completed
                if summary.problem is not None:
                    bad += 1
                    _tell(summary.seed, summary.problem, bad, kind)
            if sys.stderr.isatty():
                print(f"\r{days:,} of {len(seeds):,} days", end="", file=sys.stderr)
    seconds = time.monotonic() - began
    print(
        f"\n{days:,} days, {events:,} events, {completed:,} completed checkpoints in {seconds:.0f} s: "
        + (f"{bad} broke an invariant" if bad else "all invariants hold")
    )
    return 1 if bad else 0


def _tell(seed: int, problem: str, number: int, kind: str) -> None:
    if number <= SHOWN:
        how = f"--seed {seed} --trace" + (f" --kind {kind}" if kind != "life" else "")
        print(f"seed {seed}: {problem.splitlines()[0]}\n  replay: python -m tests.simulation {how}")


if __name__ == "__main__":
    sys.exit(main())
