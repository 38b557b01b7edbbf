"""Where the embedded server keeps its token, its log and its state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.spark.session import server_home


def test_it_is_in_the_project_where_people_look_for_the_log(tmp_path: Path) -> None:
    assert server_home(tmp_path) == tmp_path / ".tidegate" / "spark"
    (tmp_path / ".tidegate").mkdir()
    assert server_home(tmp_path) == tmp_path / ".tidegate" / "spark"


def test_where_the_code_is_somebody_elses_it_is_among_the_users_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image, whose code is root's. Each project has one of its own, and the same user finds it again."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    homes = []
    for project in (tmp_path / "a" / "shop", tmp_path / "b" / "shop"):
        project.mkdir(parents=True)
        homes.append(server_home(project))
        assert homes[-1] == server_home(project)
        assert homes[-1].is_relative_to(tmp_path / "state" / "tidegate")
    assert homes[0] != homes[1]
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert server_home(project).is_relative_to(tmp_path / "me" / ".local" / "state" / "tidegate")
