"""Any number of threads may decode into a type for the first time; a process that is forked meanwhile may, too."""

import subprocess
import sys

import pytest

# msgspec evaluates the annotations of a type when it is used for the first time. The annotation of `number` lets
# others come in between, and gives them time: they wait for the analysis, or die of reading half of it.
TYPES = """
from __future__ import annotations
import os, sys, threading
import msgspec
from tidegate.records import typed

analysing = threading.Event()

def interrupted():
    analysing.set()
    between()
    return int

class Inner(msgspec.Struct):
    number: interrupted()

class Outer(msgspec.Struct):
    inner: Inner

decoded = []

def decode():
    decoded.append(typed.decode(b'{"inner": {"number": 2}}', Outer).inner.number)

def convert():
    decoded.append(typed.convert({"inner": {"number": 2}}, Outer).inner.number)
"""
A_SECOND_THREAD = """
second = threading.Thread(target=SECOND)

def between():
    second.start()
    second.join(timeout=0.5)

FIRST()
second.join()
assert decoded == [2, 2], decoded
"""
A_FORK = """
def between():
    threading.Event().wait(0.5)

first = threading.Thread(target=FIRST)
first.start()
analysing.wait()
child = os.fork()
if child == 0:
    SECOND()
    os._exit(0)
first.join()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("story", [A_SECOND_THREAD, A_FORK], ids=["a second thread", "a fork"])
@pytest.mark.parametrize(("first", "second"), [("decode", "convert"), ("convert", "decode")])
def test_a_type_that_is_being_analysed_is_waited_for(story: str, first: str, second: str):
    script = TYPES + story.replace("FIRST", first).replace("SECOND", second)
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, f"exit {told.returncode}\n{told.stderr}"
