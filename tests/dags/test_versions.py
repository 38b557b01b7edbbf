"""A new project at one corner of the supported versions: `make matrix-versions` tells all of them, and of what."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.sampling import in_turn, turn_of
from tools.matrix_versions import CORNERS, PLACE, Corner, StepFailed, find_python

ROOT = Path(__file__).resolve().parents[2]
NO_NETWORK = r"Failed to fetch|error sending request|dns error|operation timed out|tcp connect error"
"""What uv says if it cannot reach the registry, as opposed to versions that do not fit together."""


@in_turn(seconds=300)
@pytest.mark.skipif("FETCH" not in os.environ, reason="it installs other versions of Airflow and Spark: FETCH=1")
@pytest.mark.parametrize("corner", turn_of(CORNERS, len(CORNERS)), ids=lambda corner: corner.name)
def test_a_project_is_made_tested_and_makes_checkpoints_with_other_versions(corner: Corner):
    try:
        find_python(corner.python)
    except StepFailed as missing:
        pytest.skip(str(missing))
    command = [sys.executable, "-m", "tools.matrix_versions", "--corner", corner.name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode and re.search(NO_NETWORK, (PLACE / corner.name / "install.log").read_text()):
        pytest.skip("packages cannot be fetched")
    assert done.returncode == 0, done.stdout + done.stderr
