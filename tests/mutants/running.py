"""Run tests against changed code: in a fork of a process that has imported everything but tidegate.

The changed file lies in a copy of the package, which the fork and whatever it starts find first: the real files are
never touched, and a run that is killed leaves nothing but a temporary folder.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.changes import LIBRARY, ROOT, Change
from tests.mutants.records import Reaching

__all__ = ["LIMIT_S", "OPTIONS", "Outcome", "SameTurn", "Trials", "in_memory"]

OPTIONS = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not planted", "--tb=line"]
WARM = (
    "hypothesis", "msgspec", "numpy", "obstore", "pandas", "pyarrow.dataset", "pyarrow.parquet", "deltalake", "rich",
    "yaml", "sqlglot", "pyspark.sql.functions", "argparse", "tests.kit.sampling",
)  # fmt: skip
"""What most tests import, and what imports nothing of tidegate."""

LIMIT_S = 60.0
"""The time for all tests of a change."""
HANGS_S = 20.0
"""A test that takes longer than this, and ten times longer than it took when it was recorded, hangs."""
MEMORY_BYTES = 6 << 30
"""A process that has taken this much will not end."""


class SameTurn:
    """Plugin: tests that take turns from commit to commit all run, and cases that do so are always the same ones."""

    def pytest_configure(self) -> None:
        from tests.kit import sampling

        sampling._COMMIT = ""
        sampling.TOGETHER = sys.maxsize


@dataclass
class Outcome:
    """What became of some tests."""

    passed: list[str] = field(default_factory=list)
    failed: str = ""
    """The first one that failed or hangs, or the error because of which none ran."""
    why: str = ""
    at_the_limit: bool = False
    seconds: float = 0.0


class Trials:
    """The copy of the package, and the process that is forked."""

    def __init__(self) -> None:
        for name in WARM:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        assert not any(name.split(".")[0] == "tidegate" for name in sys.modules), "a fork would not see the change"
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-mutants-", dir=in_memory()))
        shutil.copytree(ROOT / LIBRARY, self.folder / "unchanged" / LIBRARY)
        compileall.compile_dir(self.folder / "unchanged" / LIBRARY, quiet=2)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, change: Change | None, tests: Sequence[Reaching], limit: float = LIMIT_S) -> Outcome:
        """Run tests until one fails. change: None runs them against the code as it is."""
        began = time.monotonic()
        with self._copied(change) as copy:
            reading, writing = os.pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            child = os.fork()
            if child == 0:
                os.close(reading)
                _run_in_child(copy, tests, writing)
            os.close(writing)
            try:
                outcome = _watch(child, reading, {each.name: each.seconds for each in tests}, limit)
            finally:
                os.close(reading)
                _end(child)
        outcome.seconds = time.monotonic() - began
        return outcome

    @contextlib.contextmanager
    def _copied(self, change: Change | None) -> Iterator[Path]:
        copy = Path(tempfile.mkdtemp(prefix="copy-", dir=self.folder))
        try:
            shutil.copytree(self.folder / "unchanged", copy, copy_function=os.link, dirs_exist_ok=True)
            for path in ROOT.iterdir():  # its neighbours, as a checkout has them
                if path.name not in ("include", "build", ".git"):
                    (copy / path.name).symlink_to(path)
            if change is not None:
                file = copy / change.file
                file.unlink()
                file.write_bytes(change.applied())
                for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
                    compiled.unlink()
            yield copy
        finally:
            shutil.rmtree(copy, ignore_errors=True)


def in_memory() -> str | None:
    """Tests wait for the disk most of their time, if their folders are on one."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage("/dev/shm").free > 4 << 30 and os.access("/dev/shm", os.W_OK):
            return "/dev/shm"
    return None


# -- the child --------------------------------------------------------------------------------------------


class _Reporter:
    """Plugin: runs the chosen tests in their order, and reports each as it begins and ends."""

    def __init__(self, tests: Sequence[Reaching], writing: int) -> None:
        self.order = {each.name: number for number, each in enumerate(tests)}
        self.writing = writing

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = [each for each in items if each.nodeid in self.order]
        config.hook.pytest_deselected(items=[each for each in items if each.nodeid not in self.order])
        items[:] = sorted(chosen, key=lambda each: self.order[each.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._report("begins", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._report("failed", report.nodeid, _reason(report))
        elif report.when == "call":
            self._report("passed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report("failed", report.nodeid or "collecting", _reason(report))

    def _report(self, *words: str) -> None:
        os.write(self.writing, ("\t".join(words).replace("\n", " ") + "\n").encode())


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next(iter(text.strip().splitlines()[-1:]), "")[:200] if crash is None else text.splitlines()[0][:200]


def _run_in_child(copy: Path, tests: Sequence[Reaching], writing: int) -> None:
    code = 3
    try:
        os.setsid()
        os.chdir(ROOT)
        log = os.open(copy.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        package = str((copy / LIBRARY).parent)
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        os.environ |= {
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),
            "TIDEGATE_JARS": str(ROOT / ".cache" / "jars"),
        }
        sys.path.insert(0, package)
        sys.dont_write_bytecode = True
        files = list(dict.fromkeys(each.file for each in tests))
        plugins = [_Reporter(tests, writing), SameTurn()]
        code = int(pytest.main([*OPTIONS, "-x", f"--basetemp={copy / 'basetemp'}", *files], plugins=plugins))
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(writing, f"failed\tpytest\t{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


# -- the parent -------------------------------------------------------------------------------------------


def _watch(child: int, reading: int, seconds: dict[str, float], limit: float) -> Outcome:
    """Read what the child reports until it ends, a test fails or hangs, or the time is over."""
    outcome, began, rest = Outcome(), time.monotonic(), ""
    running, since = "", began
    while True:
        ready, _, _ = select.select([reading], [], [], 0.2)
        now = time.monotonic()
        if ready:
            data = os.read(reading, 1 << 16).decode(errors="replace")
            if not data:
                return outcome
            *lines, rest = (rest + data).split("\n")
            for what, name, *why in (line.split("\t") for line in lines):
                running, since = (name, now) if what == "begins" else ("", now)
                if what == "passed":
                    outcome.passed.append(name)
                elif what == "failed":
                    outcome.failed, outcome.why = name, " ".join(why)
                    return outcome
        if running and now - since > max(HANGS_S, 10 * seconds.get(running, 0)):
            outcome.failed, outcome.why = running, f"hangs: {now - since:.0f} s"
        elif _memory(child) > MEMORY_BYTES:
            outcome.failed, outcome.why = running or "collecting", "takes all memory"
        if outcome.failed:
            return outcome
        if now - began > limit + (HANGS_S if running else 0) or (now - began > limit and not running):
            outcome.at_the_limit = True
            return outcome


def _memory(child: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{child}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _end(child: int) -> None:
    """End the child, and what it started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
