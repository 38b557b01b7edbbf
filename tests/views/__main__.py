"""`make views`: random lives of a pipeline, and everything that shows something, looked at after each act."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.views.acts import ACTS
from tests.views.life import live
from tests.views.routes import Web
from tests.views.shops import Shops
from tidegate.config import load_settings
from tidegate.spark.session import session, spark_settings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.views", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--share", type=float, default=1.0, help="of the commands that are looked at after each act")
    parser.add_argument("--acts", nargs="*", default=[], choices=list(ACTS), help="these, in place of random ones")
    parser.add_argument("--no-web", action="store_true")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    bad, web = 0, None if options.no_web else Web()
    with tempfile.TemporaryDirectory(prefix="tidegate-views-") as folder:
        with Shops(Path(folder) / "first").entered():
            settings = spark_settings(load_settings())
        with session(settings):  # Spark stays up between commands
            for seed in seeds:
                began = time.monotonic()
                place, acts = Path(folder) / str(seed), tuple(options.acts)
                print(f"seed {seed}:", flush=True)
                told = live(seed, place, web, options.steps, options.share, acts, tell=_tell)
                shutil.rmtree(Path(folder) / str(seed), ignore_errors=True)
                print(f"seed {seed}: {told}, {time.monotonic() - began:.0f} s", flush=True)
                for refused in told.refused:
                    print(f"  refused {refused}", flush=True)
                if told.wrong:
                    bad += 1
                    print(f"  replay: make views SEED={seed}", flush=True)
    if web is not None:
        print(f"answers: {dict(sorted(web.answered.items()))}")
    print(f"{bad} lives went wrong" if bad else "all that was looked at is as it must be")
    return 1 if bad else 0


def _tell(what: str) -> None:
    print(f"  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
