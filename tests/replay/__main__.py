"""`make replay`: random lives of random pipelines, and backfills of unchanged code that must change nothing."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.kit.jvm import INTERPRETED
from tests.replay.life import ACTS, Life
from tests.replay.oracle import ReplayReport
from tests.replay.pipelines import GATES, PIECES, Drawn
from tidegate.spark.session import SparkSettings, session


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--minutes", type=float, help="begin no further life after so many minutes")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--acts", nargs="*", default=[], choices=list(ACTS), help="these, in place of random ones")
    parser.add_argument("--pieces", nargs="*", default=[], choices=list(PIECES), help="these, in place of random ones")
    parser.add_argument("--gates", nargs="*", choices=list(GATES), help="these, in place of random ones")
    parser.add_argument("--count", type=int, default=4, help="so many pieces are drawn")
    parser.add_argument("--story", action="store_true", help="print what befalls each life")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    began, bad, all_told = time.monotonic(), 0, ReplayReport()
    lives = 0
    with tempfile.TemporaryDirectory(prefix="tidegate-replay-") as folder:
        settings = SparkSettings(
            mode="local", home=Path(folder) / "spark", master="local[2]", memory="1g", conf=INTERPRETED
        )
        with session(settings) as spark:
            for seed in seeds:
                if options.minutes is not None and time.monotonic() - began > 60 * options.minutes:
                    break
                lives += 1
                drawn = Drawn(seed, tuple(options.pieces), options.gates, options.count)
                told = _one(seed, Path(folder) / str(seed), spark, drawn, options)
                bad += bool(told.wrong)
                for each in fields(ReplayReport):
                    setattr(all_told, each.name, getattr(all_told, each.name) + getattr(told, each.name))
    print(f"{lives} lives, {time.monotonic() - began:.0f} s: {all_told}")
    print(f"{bad} lives went wrong" if bad else "no backfill has changed a row that it must not change")
    return 1 if bad else 0


def _one(seed: int, root: Path, spark: Any, drawn: Drawn, options: argparse.Namespace) -> ReplayReport:
    began = time.monotonic()
    print(f"seed {seed}: {drawn}", flush=True)
    life = Life(seed, root, spark, drawn)
    try:
        life.live(options.steps, tuple(options.acts))
    except Exception:
        life.told.finds("".join(traceback.format_exc(limit=-8)))
    shutil.rmtree(root, ignore_errors=True)
    told = life.told
    if told.wrong or options.story:
        print("\n".join(f"  {each}" for each in told.story))
    print(f"seed {seed}: {told}, {time.monotonic() - began:.0f} s", flush=True)
    for each in told.wrong:
        print(f"  WRONG {each[:1500]}")
    if told.wrong:
        print(f"  replay: make replay SEED={seed}", flush=True)
    return told


if __name__ == "__main__":
    sys.exit(main())
