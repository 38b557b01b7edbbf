"""What tests on a cluster need of the machine."""

from __future__ import annotations

import pytest

from tests.spark.cluster import can_be_blind
from tidegate.spark.jars import jars_folder

NEEDS = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not jars_folder().with_name("jars-s3").is_dir() or not can_be_blind(),
        reason="needs the jars for s3:// (make setup S3=1), and a user who may hide folders from a process",
    ),
]
