"""Gates are made ready beside other work, without getting in its way."""

from __future__ import annotations

import subprocess
import sys

WARMED = """
import sys
from types import SimpleNamespace
from tidegate.execution.job import gates

found = []

class Gate:
    def warm_up(self):
        found.extend(name in sys.modules for name in ("pyspark.sql.connect.session", "pyspark.ml.feature"))

gates.warm_gates(SimpleNamespace(gates=[SimpleNamespace(gate=Gate())]))
gates._warming[0].join()
print(found)
"""


def test_what_great_expectations_imports_of_spark_is_there_before_a_thread_imports_it():
    """Two threads that import parts of one package at once may each find half of it: seen as KeyError 'pyspark.sql'."""
    done = subprocess.run([sys.executable, "-c", WARMED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True]"
