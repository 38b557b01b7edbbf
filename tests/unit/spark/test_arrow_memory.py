"""How Arrow's memory is set up, each time in a new process: its allocator reads settings when it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOOK = """
import os, sys
seen = []
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "pyarrow":
            seen.append(os.environ.get("MIMALLOC_PURGE_DELAY"))
sys.meta_path.insert(0, Watch())
{first}
from tidegate.spark.session import ReusedSession, SparkSettings
ReusedSession(SparkSettings())
ReusedSession(SparkSettings())
print("pyarrow" in sys.modules, seen, os.environ.get("MIMALLOC_PURGE_DELAY"))
"""


@pytest.mark.parametrize(
    ("first", "given", "told"),
    [
        ("", None, "True ['10000'] None"),
        ("import pyarrow", None, "True [None] None"),
        ("", "5", "False [] 5"),
    ],
)
def test_arrow_keeps_its_memory_for_a_while_in_the_process_that_has_the_session(first, given, told):
    """What a user sets stays, and child processes inherit nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    if given is not None:
        environment["MIMALLOC_PURGE_DELAY"] = given
    command = [sys.executable, "-c", LOOK.format(first=first)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told
