"""`python -m tests.soak --checkpoints 1000`: make them, and judge what they leave on disk."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.judge import judged
from tests.soak.soak import Soak


def main() -> int:
    """0: storage is within 5 % of the formula."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=1000, help="how many")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder))
        soak.run(options.checkpoints)
        try:
            print(judged(soak))
        except AssertionError as problem:
            print(f"not as it must be: {problem}", file=sys.stderr)
            return 1
    print(f"{time.monotonic() - began:.0f} s; within 5 %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
