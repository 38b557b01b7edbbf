"""What the garbage collector of a Python worker looks at after a task."""

from __future__ import annotations

import subprocess
import sys

TASKS = """
import gc, weakref
from tidegate.spark.workers.garbage import sparing_modules

class Ring:
    def __init__(self):
        self.self = self

def frozen_after(task):
    list(sparing_modules(task)(iter([1])))
    return gc.get_freeze_count()

def importing(batches):
    import decimal, pyarrow
    yield from batches

def littering(batches):
    global left
    ring = Ring()
    left = weakref.ref(ring)
    del ring
    yield from batches

def importing_more(batches):
    import wave
    yield from batches

first = frozen_after(importing)
second = frozen_after(littering)
gc.collect()
print(first > 10_000, second == first, left() is None, frozen_after(importing_more) > first)
"""


def test_modules_are_spared_once_and_what_tasks_leave_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", TASKS], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "True", "True"], done.stdout + done.stderr
