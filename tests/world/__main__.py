"""`make world`: random lives of a connector, while its other side is changed, dropped, restored, filled and cut off."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.views.shops import Shops
from tests.world.life import SIDES, Lived, live, missing_servers
from tests.world.other_side import Servers
from tidegate.config import load_settings
from tidegate.spark.session import session, spark_settings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--kinds", nargs="*", default=list(SIDES), choices=list(SIDES), help="of connectors")
    parser.add_argument("--acts", nargs="*", default=[], help="these, in place of random ones")
    parser.add_argument("--minutes", type=float, help="no life begins after that")
    options = parser.parse_args()
    if missing := missing_servers(options.kinds):
        parser.error(f"there is no {', '.join(missing)} here: name --kinds without it")
    seeds = [options.seed] if options.seed is not None else range(options.start, options.start + options.seeds)
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    lives: list[Lived] = []
    bad: list[int] = []
    with tempfile.TemporaryDirectory(prefix="tidegate-world-") as folder, Servers() as servers:
        with Shops(Path(folder) / "first").entered():
            settings = spark_settings(load_settings())
        with session(settings):  # Spark stays up between commands
            for seed in seeds:
                if until is not None and time.monotonic() > until:
                    break
                began, place = time.monotonic(), Path(folder) / str(seed)
                print(f"seed {seed}:", flush=True)
                lived = live(
                    seed,
                    place,
                    servers,
                    steps=options.steps,
                    kinds=options.kinds,
                    acts=options.acts,
                    tell=lambda what: print(f"  {what}", flush=True),
                )
                shutil.rmtree(place, ignore_errors=True)
                lives.append(lived)
                print(f"seed {seed}: {lived}, {time.monotonic() - began:.0f} s", flush=True)
                if lived.wrong:
                    bad.append(seed)
                    print("".join(f"  WRONG {each}\n" for each in lived.wrong), end="")
                    print(f"  replay: make world SEED={seed}", flush=True)
    print_totals(lives)
    print(f"{len(bad)} lives went wrong: {bad}" if bad else "right rows or a named cause, whatever happened")
    return 1 if bad else 0


def print_totals(lives: list[Lived]) -> None:
    """How much was tried, by connector."""
    for kind in SIDES:
        of_kind = [each for each in lives if each.kind == kind]
        if not of_kind:
            continue
        acts = sum((each.acts for each in of_kind), Counter[str]())
        causes = sum((each.causes for each in of_kind), Counter[str]())
        remedies = sum((each.remedies for each in of_kind), Counter[str]())
        print(
            f"{kind}: {len(of_kind)} lives, {acts.total()} acts of {len(acts)}/{len(SIDES[kind].acts())} kinds, "
            f"{sum(each.checkpoints for each in of_kind)} checkpoints, {sum(each.rows for each in of_kind)} rows, "
            f"{causes.total()} causes {dict(causes.most_common())}, remedies {dict(remedies)}"
        )


if __name__ == "__main__":
    sys.exit(main())
