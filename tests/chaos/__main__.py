"""`python -m tests.chaos --minutes 30 --seed 7`: chaos on a real deployment; `make chaos MINUTES=30 SEED=7`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos.chaos import tell
from tests.chaos.faults import FAULTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="for how long there are faults")
    parser.add_argument("--seed", type=int, default=1, help="decides the faults")
    parser.add_argument(
        "--only", nargs="+", default=(), choices=list(FAULTS), metavar="FAULT", help="only these faults"
    )
    parser.add_argument("--every", type=float, default=6, metavar="SECONDS", help="between two faults, on average (6)")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="work in this new folder, and keep it (but its disk)"
    )
    parser.add_argument("--cold", action="store_true", help="without a spare Spark server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-chaos-") as folder:
        place = options.keep or Path(folder) / "chaos"
        wrong = tell(options.seed, options.minutes, place, options.only, options.every, spare=not options.cold)
    for each in wrong:
        print(f"WRONG: {each}")
    print(f"{len(wrong)} things went wrong" if wrong else "nothing was lost, doubled or half-visible")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
