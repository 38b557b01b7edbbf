"""Make `version_0_2.tar.xz`: what version 0.2.0 had on disk after a few checkpoints of `version_0_2.py`.

    git worktree add /tmp/tidegate-0.2 c92181e0
    mkdir -p /tmp/tidegate-0.2/.cache && ln -s $PWD/.cache/jars /tmp/tidegate-0.2/.cache/jars
    PYTHONPATH=/tmp/tidegate-0.2/include:/tmp/tidegate-0.2 .venv/bin/python tests/earlier/make.py
    git worktree remove --force /tmp/tidegate-0.2

The packages of uv.lock that it needs are of the same versions as then. Nothing in what it writes depends on the folder:
paths of a pipeline's data start from where its records are opened.
"""

from __future__ import annotations

import importlib.util
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Play the first checkpoints of each pipeline, and pack the folders."""
    from tests.spark.play import Play  # version 0.2.0's

    from tidegate.spark.session import SparkSettings, session

    spec = importlib.util.spec_from_file_location("version_0_2", HERE / "version_0_2.py")
    earlier = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(earlier)
    pipelines = {**earlier.CONTINUED, **earlier.REFUSED}
    with tempfile.TemporaryDirectory() as folder, session(SparkSettings(mode="local", master="local[2]")) as spark:
        for name, build in pipelines.items():
            play = Play(Path(folder, name), spark, build, earlier.NAME)
            for feed in earlier.ROWS[: earlier.EARLIER]:
                for source, rows in feed.items():
                    play.feed(rows, source)
                print(name, play.checkpoint())
        with tarfile.open(HERE / "version_0_2.tar.xz", "w:xz") as archive:
            archive.add(folder, ".")


if __name__ == "__main__":
    main()
