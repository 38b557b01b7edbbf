"""`python -m tests.model [--large] [--mutations]`: explore, and print what was seen."""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.divert_mutations import DIVERT_MUTATIONS
from tests.model.explore import explore
from tests.model.line_mutations import LINE_MUTATIONS
from tests.model.mutations import MUTATIONS
from tests.model.worlds import LARGE, SMALL


def main() -> int:
    """Explore the worlds, then show the story of each mutation. Fails if anything is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--large", action="store_true", help="minutes, not seconds; needs about 6 GB")
    parser.add_argument("--mutations", action="store_true", help="print how each mutation fails")
    parser.add_argument("--limit", type=int, default=20_000_000, help="states per world")
    options = parser.parse_args()
    good = True
    for _, world, at_least, what in [*SMALL, *(LARGE if options.large else [])] if not options.mutations else []:
        began = time.monotonic()
        result = explore(world, options.limit)
        print(f"{what}: {result} ({time.monotonic() - began:.0f} s)", flush=True)
        good &= result.problem is None and result.states >= at_least
    for mutation in [*MUTATIONS, *LINE_MUTATIONS, *DIVERT_MUTATIONS]:
        result = explore(mutation.broken_world())
        caught = result.problem is not None and mutation.shows in result.problem
        good &= caught
        story = (
            str(result)
            if options.mutations
            else f"{len(result.trace)} steps, {result.states:,} states: {result.problem}"
        )
        print(f"{'caught' if caught else 'MISSED'}: {mutation.name}: {story}", flush=True)
    return 0 if good else 1


sys.exit(main())
