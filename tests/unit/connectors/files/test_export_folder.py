"""The log of an export: its end is found by listing; the hint only says where to begin."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidegate.connectors.files.export_folder import ExportFolder, ExportManifest, LogEntry
from tidegate.delta import Location


def append(folder: ExportFolder, checkpoint: int) -> None:
    latest = folder.latest()
    number = latest.number + 1 if latest is not None else 1
    entry = LogEntry(checkpoint=checkpoint, after=None, app="tidegate/u/s", format="json", files=[])
    assert folder.append(number, entry)


def write_hint(path: Path, number: int) -> None:
    manifest = ExportManifest(checkpoint=1, after=None, format="json", rows=0, number=number, files=[])
    (path / "_latest.json").write_bytes(msgspec.json.encode(manifest))


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 9])
def test_the_end_of_an_exports_log_is_found_whatever_the_hint_says(tmp_path: Path, number: int) -> None:
    """It may be older than the log, or newer: whoever puts a copy of the log back leaves the hint as it is."""
    folder = ExportFolder(Location(str(tmp_path)))
    for checkpoint in (10, 20, 30):
        append(folder, checkpoint)
    write_hint(tmp_path, number)
    latest = folder.latest()
    assert latest is not None
    assert (latest.number, latest.entry.checkpoint) == (3, 30)


def test_the_next_export_never_takes_the_number_of_one_that_the_hint_does_not_know(tmp_path: Path) -> None:
    folder = ExportFolder(Location(str(tmp_path)))
    append(folder, 10)
    write_hint(tmp_path, 1)
    append(folder, 20)
    append(folder, 30)
    latest = folder.latest()
    assert latest is not None
    assert latest.number == 3
