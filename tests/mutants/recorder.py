"""Run test files once, and note for each test how long it took and which statements of the product it reached.

    python -m tests.mutants.recorder FOLDER tests/unit/protocol/test_rules.py ...

Each file's record is written into FOLDER/reached when its last test has run: what is interrupted has to be done again
for the remaining files only.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import probes
from tests.mutants.changes import ROOT, modules_of
from tests.mutants.records import content_hash, keep_source, record_path
from tests.mutants.running import OPTIONS, SameTurn, in_memory

CHILDREN = str(Path(__file__).with_name("in_children"))
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def main(folder: Path, files: list[str]) -> int:
    scratch = Path(tempfile.mkdtemp(prefix="tidegate-reached-", dir=in_memory()))
    try:
        places, size = _places()
        (scratch / "array").write_bytes(bytes(size))
        (scratch / "places.json").write_text(json.dumps(places))
        path = os.pathsep.join(filter(None, [CHILDREN, os.environ.get("PYTHONPATH")]))
        os.environ |= {probes.FOLDER: str(scratch), f"{probes.FOLDER}_BY": str(ROOT), "PYTHONPATH": path}
        recorder = _Recorder(folder, probes.note_what_is_reached(), places)
        code = pytest.main([*OPTIONS, f"--basetemp={scratch / 'tests'}", *files], plugins=[recorder, SameTurn()])
        if code in ENDED:
            recorder.write()
            for file in set(files) - recorder.written:
                _write(folder, file, {}, places)
        return int(code)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _places() -> tuple[dict[str, int], int]:
    """For each module, where its lines begin in the array; and how long that is."""
    places, size = {}, 0
    for file in modules_of():
        places[str(ROOT / file)] = size
        size += (ROOT / file).read_bytes().count(b"\n") + 2
    return places, size


class _Recorder:
    def __init__(self, folder: Path, array: probes.Reached, places: dict[str, int]) -> None:
        self.folder, self.array, self.places = folder, array, places
        self.nothing = bytes(len(array))
        self.file = ""
        self.tests: dict[str, dict[str, Any]] = {}
        """Those of the file that runs now."""
        self.written: set[str] = set()
        self.by_fixtures: dict[Any, set[int]] = {}
        self.shared_seconds = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        file = item.nodeid.split("::")[0]
        if file != self.file:
            self.write()
            self.file = file
        self.shared_seconds, began = 0.0, time.monotonic()
        test = self.tests[item.nodeid] = {"passed": False}
        self.array[:] = self.nothing
        result = yield
        reached = self._reached()
        for definitions in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
            for each in definitions:
                reached |= self.by_fixtures.get(each, set())
        test |= {"seconds": round(time.monotonic() - began - self.shared_seconds, 3), "reached": reached}
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What a fixture that several tests share reaches is reached by each of them."""
        if fixturedef.scope == "function":
            return (yield)
        before, began, inner = bytes(self.array), time.monotonic(), self.shared_seconds
        self.array[:] = self.nothing
        result = yield
        self.by_fixtures[fixturedef] = self._reached()
        self.array[:] = before
        if fixturedef.scope == "session":
            self.shared_seconds = inner + time.monotonic() - began
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests[report.nodeid]
        if report.when == "call":
            test["passed"] = report.passed
        elif report.failed:
            test["passed"] = False

    def _reached(self) -> set[int]:
        return {each.start() for each in re.finditer(b"\x01", bytes(self.array))}

    def write(self) -> None:
        """Write the record of the file whose tests have run."""
        if self.tests:
            _write(self.folder, self.file, self.tests, self.places)
            self.written.add(self.file)
            self.tests = {}


def _write(folder: Path, file: str, tests: dict[str, dict[str, Any]], places: dict[str, int]) -> None:
    modules = sorted(places, key=lambda each: places[each])
    starts = [places[each] for each in modules]
    reached: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for number, test in enumerate(tests.values()):
        for place in test["reached"]:
            module = bisect.bisect_right(starts, place) - 1
            reached[modules[module]][place - starts[module]] |= 1 << number
    of_modules = {}
    for module_path, lines in reached.items():
        name = str(Path(module_path).relative_to(ROOT))
        of_modules[name] = [keep_source(folder, name), {line: hex(mask) for line, mask in sorted(lines.items())}]
    path = record_path(folder, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [[name, test["seconds"], test["passed"]] for name, test in tests.items()]
    path.write_text(json.dumps({"content": content_hash(file), "tests": results, "modules": of_modules}))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
