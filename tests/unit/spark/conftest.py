"""Servers that cost nothing: the watchdog is real, what it watches over is fake_server.py."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.spark.conf import SparkSettings
from tidegate.spark.server import server as connect_server
from tidegate.spark.server.folder import ServerFolder
from tidegate.spark.server.processes import ProcessId, kill

FAKE = Path(__file__).with_name("fake_server.py")


class Servers:
    """Says what the next server is like, and ends all in the end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.how = "ok"
        self.settings = SparkSettings(home=home, start_timeout=20)

    def command(self, folder: ServerFolder) -> tuple[str, ...]:
        return (sys.executable, str(FAKE), self.how)

    def start(self, **changes: object) -> connect_server.ServerInfo:
        return connect_server.start(replace(self.settings, **changes))

    def used(self, **changes: object) -> contextlib.AbstractContextManager[connect_server.ServerInfo]:
        """One that stays while the block runs, however short its time without a client is."""
        return connect_server.acquire(replace(self.settings, **changes))

    def folder(self, info: connect_server.ServerInfo) -> ServerFolder:
        return ServerFolder(self.home / info.key)

    def server(self, info: connect_server.ServerInfo) -> ProcessId:
        state = self.folder(info).state()
        assert state is not None
        return state.server

    def end(self) -> None:
        for path in self.home.iterdir() if self.home.is_dir() else ():
            folder = ServerFolder(path)
            state, watchdog = folder.state(), folder.watchdog()
            for process in (watchdog, state and state.server, state and state.watchdog):
                if process is not None:
                    kill(process, signal.SIGKILL)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    servers = Servers(tmp_path / "home")
    monkeypatch.setattr(connect_server, "command", servers.command)
    monkeypatch.setattr(connect_server, "check_answers", lambda builder, timeout: None)
    monkeypatch.setattr(connect_server, "loopback", lambda port, token: None)
    yield servers
    servers.end()
