"""Wait for something to become true; no test waits for time to pass."""

import time
from collections.abc import Callable
from typing import Any


def eventually(what: str, condition: Callable[[], Any], timeout: float = 30.0) -> Any:
    """The first true value of `condition`, or a failure that says what never became true."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.02)
    return value
