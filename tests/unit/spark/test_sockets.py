"""Spark's workers talk through sockets in the server's folder, where that can hold them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tidegate.spark.server.sockets import socket_settings

ENABLED, FOLDER = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"


def test_a_folder_that_can_hold_sockets_is_used_and_left_as_it_was(tmp_path: Path) -> None:
    short = tmp_path / "s"
    short.mkdir()
    assert socket_settings(short, begins_there=True) == {ENABLED: "true", FOLDER: "."}
    assert list(short.iterdir()) == []


def test_the_working_directory_may_have_a_long_path_another_folder_may_not(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    assert socket_settings(deep, begins_there=True)[FOLDER] == "."
    assert socket_settings(deep) == {}


@pytest.mark.parametrize("call", ["bind", "connect"])
def test_what_cannot_hold_them_is_not_used(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(made: Any, name: str) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(socket.socket, call, refuse, raising=False)
    assert socket_settings(tmp_path, begins_there=True) == {}
    assert list(tmp_path.iterdir()) == []
    assert socket_settings(tmp_path / "gone", begins_there=True) == {}
