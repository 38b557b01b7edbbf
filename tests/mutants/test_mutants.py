"""`make mutants` in short: which changes are made, and whether tests notice those that an audit made."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.sampling import turn_of
from tests.mutants.changes import ROOT, changes_of
from tests.mutants.planted import planted

SWAPS = "tests/unit/backfill/test_swap_steps.py"
IN_TURN = [
    (SWAPS, "swap: the tombstone"),
    (SWAPS, "swap: the line may"),
    (SWAPS, "swap: lower entries"),
    (SWAPS, "line: decisions"),
    (SWAPS, "discard: the pin"),
    ("tests/unit/connectors/delta/test_delta_shadow.py", "shadow: replaced files"),
    ("tests/unit/connectors/delta/test_delta_shadow.py", "restore: what lies below"),
    ("tests/unit/connectors/files/test_export_folder.py", "export: the hint"),
    ("tests/unit/state/test_row_ttl.py", "microsecond longer, in workers"),
    ("tests/unit/state/test_row_ttl.py", "microsecond longer, for whole files"),
    ("tests/unit/state/test_row_ttl.py", "microsecond longer, in Spark"),
    ("tests/unit/test_stores.py", "stores: a client"),
]
"""Tests, and which of these changes they must notice."""
UNREACHED = ("include/tidegate/operators/window/sessions.py", "if any_new:", "if not any_new:")
SAME = ("include/tidegate/protocol/view.py", "index = id - self.entries[0].id", "index = id + 0 - self.entries[0].id")


@pytest.mark.parametrize(("file", "name"), turn_of(IN_TURN, len(IN_TURN)))
def test_what_an_audit_changed_is_noticed_and_what_no_test_notices_is_reported(
    tmp_path: Path, file: str, name: str
) -> None:
    options = ["--records", str(tmp_path), "--tests", *dict.fromkeys([SWAPS, file]), "--planted", name]
    for change in (UNREACHED, SAME):
        options += ["--change", *change]
    command = [sys.executable, "-m", "tests.mutants", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    verdicts = re.findall(r"^ +\d+ (not reached|survived|noticed) ", done.stdout.partition(" are noticed:")[0], re.M)
    assert verdicts == ["not reached", "survived", "noticed"], done.stdout + done.stderr
    assert done.returncode == 1, "one is not reached, and one survives"


def test_the_lines_that_an_audit_changed_are_still_there() -> None:
    changes = planted()
    assert len(changes) == 20
    assert all(change.compiles() and change.statement for change in changes.values())
    assert all(sum(part in name for name in changes) == 1 for _, part in IN_TURN)


EXAMPLE = '''"""A module with `1 < 2` in its text."""

from __future__ import annotations

__all__ = ["size"]


def size(items: list[int], at_most: int = 3) -> int:
    """Return how many there are, not more than 3."""
    if len(items) > at_most:
        log.warning("there are %s, more than 3", len(items) + 1)
        raise Invalid(f"{len(items) - 1} too many", help="take 3")
    self.seen = True
    return min(len(items), at_most)
'''
CHANGED = {
    "at_most: int = 4",
    "if len(items) >= at_most:",
    "if True:",
    "if False:",
    "pass",
    "self.seen = False",
    "return 0",
    "return max(len(items), at_most)",
}


def test_what_only_people_read_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(EXAMPLE)
    found = [change.diff() for change in changes_of(str(file))]
    assert len(found) == len(CHANGED) + 1, "what is dropped: an assignment, and a raise"
    for text in CHANGED:
        assert any(text in diff for diff in found), text
