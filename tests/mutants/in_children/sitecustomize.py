"""On the path of processes that tests start: what they run of the product is noted, as in the tests' own process."""

import os

if "REACHED_LINES" in os.environ:
    import sys

    sys.path.insert(0, os.environ["REACHED_LINES_BY"])
    try:
        from tests.mutants.probes import note_what_is_reached
    finally:
        sys.path.pop(0)
    note_what_is_reached()
