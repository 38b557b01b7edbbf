"""Five pipelines of one Airflow, each broken in its own way, for a newcomer to find out why from the pages alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.dags.project import HELD, Made
from tests.dags.server import WARM, Airflow
from tests.kit.waiting import eventually

SUITE = """
name: bad_rows
expectations:
  - type: expect_column_values_to_be_between
    kwargs: {column: file, max_value: 0}
"""
GATE = """
from tidegate.gates import Expectations
seen = seen.gate(Expectations("bad_rows", on_failure="quarantine", at_most=0.2), name="checked")
"""
CLEANER = """
def clean_up(it):
    (HERE / "in" / "00001.json").unlink(missing_ok=True)

pipeline.hook("cleaner", on_trigger=clean_up)
"""
"""Somebody takes away what has just been planned."""
ONCE = 'seen = seen.deduplicate(by="id", uid="once")'

FULL_DISK = (
    WARM
    + """
import errno, os
FULL = {marker!r}
make, look = os.open, os.statvfs

def is_full(path):
    return str(path).startswith(os.path.dirname(FULL)) and os.path.exists(FULL)

def open_if_there_is_room(path, flags, *more, **named):
    if flags & os.O_CREAT and is_full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    return make(path, flags, *more, **named)

def room(path):
    found = look(path)
    return os.statvfs_result((*found[:3], 0, 0, *found[5:])) if is_full(path) else found

os.open, os.statvfs = open_if_there_is_room, room
"""
)
"""For every process of Airflow: where the marker lies, nothing can be created, and the disk says that it is full."""


class Walk:
    """The pipelines, before and after they break."""

    def __init__(self, airflow: Airflow) -> None:
        self.airflow = airflow
        self.made: dict[str, Made] = {}
        self.runs: dict[str, Any] = {}

    def declare(self) -> None:
        """Before Airflow starts: it reads the DAG files once."""
        project = self.airflow.project
        suites = project.folder / "include" / "expectations"
        suites.mkdir(parents=True)
        (suites / "bad_rows.yaml").write_text(SUITE)
        self._pipeline("bad_rows", gate=GATE)
        self._pipeline("lost_file", gate=CLEANER)
        self._pipeline("killed", stage=HELD).hold()
        self._pipeline("full_disk", root=str(project.folder / "full_disk" / "ledger"))
        self._pipeline("changed", gate=ONCE)
        self.airflow.local_settings = FULL_DISK.format(marker=str(self.marker))

    def _pipeline(self, name: str, **parts: Any) -> Made:
        parts |= {"interval": "never", "tolerable_failed_checkpoints": 0, "restart.strategy": "none"}
        self.made[name] = self.airflow.project.pipeline(name, **parts).feed()
        return self.made[name]

    @property
    def marker(self) -> Path:
        return self.airflow.project.folder / "full_disk" / "full"

    def breaks(self) -> None:
        """All at once: what each of them does takes seconds, and waits for another one's."""
        self.marker.touch()
        names = ("changed", "killed", "bad_rows", "lost_file", "full_disk")
        self.runs = {name: self.airflow.trigger(name) for name in names}
        os.kill(self.made["killed"].at_work(), signal.SIGKILL)
        assert self.runs["changed"].ended() == "success"
        dag_file = self.made["changed"].dag_file
        dag_file.write_text(dag_file.read_text().replace('by="id"', 'by="file"'))
        self.runs["changed"] = self.airflow.trigger("changed")
        eventually("the disk is found full", lambda: self.runs["full_disk"].tasks()["trigger"] != "running")
        for name in ("changed", "killed", "bad_rows", "lost_file"):
            assert self.runs[name].ended() == "failed", name
