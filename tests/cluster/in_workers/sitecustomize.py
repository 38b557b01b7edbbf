"""On the import path of Spark's Python workers in tests of faults: lets one of them fail where the test says.

The test writes what is to happen into a file beside this one, as JSON: at which upload of a file (0: the first), before
or after it, and what. Whoever is there takes the file away, so it happens once.
"""

import contextlib
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
_WATCHED = "tidegate.delta.files.access"


class _Watching(importlib.abc.MetaPathFinder):
    """Puts itself in front of `close` of what is uploaded, once tidegate has been imported."""

    def find_spec(self, name, path, target=None):
        if name != _WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            if module.__name__ != _WATCHED:  # a zip file has one loader for all modules of a folder
                return
            close = module._Upload.close

            def watched(upload):
                if upload.closed:
                    return
                _meet("before", upload._path)
                close(upload)
                _meet("after", upload._path)

            module._Upload.close = watched

        spec.loader.exec_module = exec_module
        return spec


def _meet(when, path):
    file, taken = f"{_HERE}/fault.json", f"{_HERE}/taken-{os.getpid()}.json"
    try:
        with open(file) as told:
            fault = json.load(told)
    except (FileNotFoundError, ValueError):
        return
    if fault["when"] != when or fault["where"] not in path:
        return
    try:
        os.rename(file, taken)
    except FileNotFoundError:
        return
    with open(f"{_HERE}/met.txt", "a") as met:
        met.write(f"{fault['what']} {path}\n")
    if fault["what"] == "kill":
        os.kill(_executor(), signal.SIGKILL)
        time.sleep(60)
    if fault["what"] == "fail":
        raise OSError("the test lets this task fail")
    time.sleep(fault["seconds"])


def _executor():
    """The JVM: the parent of the daemon that has forked this process."""
    pid = os.getpid()
    while True:
        with open(f"/proc/{pid}/cmdline") as words:
            if "CoarseGrainedExecutorBackend" in words.read():
                return pid
        with open(f"/proc/{pid}/stat") as stat:
            pid = int(stat.read().rpartition(")")[2].split()[1])


with contextlib.suppress(Exception):
    sys.meta_path.insert(0, _Watching())
