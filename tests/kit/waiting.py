"""Wait for something to become true; no test waits for time to pass."""

import time
from collections.abc import Callable
from typing import Any

FIRST_S, LONGEST_S = 0.02, 0.25
"""Between two looks: at first often, then less so, for whoever is asked computes on the same two cores."""

PATIENCE_S = 120.0
"""No story is about it: only what hangs takes longer, also on a machine with ten times as much to do as processors."""


def eventually(what: str, condition: Callable[[], Any], timeout: float = PATIENCE_S) -> Any:
    """The first true value of `condition`, or a failure that says what never became true."""
    deadline, pause_s = time.monotonic() + timeout, FIRST_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, LONGEST_S)
    return value
