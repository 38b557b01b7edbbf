"""The folder of one embedded server, with two files for other processes: what to launch, and what is running.

home/<key>/            key: hash of everything that defines this server
  start.lock           held by the process that starts or stops this server
  watch.lock           held by the watchdog for as long as it lives; contains its pid
  lease.lock           held, shared, by every client: while one lives, the server does not idle out
  launch.json          the watchdog's instructions
  server.json          the running server. Without this file the watchdog ends the server
  token                the clients' token; a new one for every watchdog
  spark.properties     Spark's configuration
  server.log           (and server.log.1, the previous one)
  scratch/             Spark's temporary files: shuffle files, its working folder
  spare/               spark.properties and scratch/ of a second server, the spare. When it takes over, scratch/ is for
                       the next spare
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate import seams
from tidegate.errors import Invalid
from tidegate.spark.conf import properties
from tidegate.spark.server.processes import ProcessId

__all__ = ["Launch", "ServerFolder", "ServerPlace", "ServerState", "private_folder"]


@dataclass(frozen=True)
class Launch:
    """The instructions for the watchdog.

    commands: those of the server, and of its spare if it has one.
    """

    commands: tuple[tuple[str, ...], ...]
    idle_timeout: float
    answer_timeout: float
    start_timeout: float
    spare_after: float = 0.0
    """The seconds between the server being ready and the start of its spare."""


@dataclass(frozen=True)
class ServerState:
    """A server that was ready when this was written."""

    port: int
    server: ProcessId
    watchdog: ProcessId
    started: str
    spare: ProcessId | None = None
    """The server that takes over when this one dies, or None if it has no spare, or none that is ready."""


@dataclass(frozen=True)
class ServerPlace:
    """The paths of one of the two servers of a folder."""

    path: Path

    @property
    def properties_file(self) -> Path:
        return self.path / "spark.properties"

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"


@dataclass(frozen=True)
class ServerFolder:
    """Paths of the folder, with functions that read and write its files."""

    path: Path

    @property
    def key(self) -> str:
        return self.path.name

    @property
    def start_lock(self) -> Path:
        return self.path / "start.lock"

    @property
    def watch_lock(self) -> Path:
        return self.path / "watch.lock"

    @property
    def lease_lock(self) -> Path:
        return self.path / "lease.lock"

    @property
    def state_file(self) -> Path:
        return self.path / "server.json"

    @property
    def token_file(self) -> Path:
        return self.path / "token"

    @property
    def launch_file(self) -> Path:
        return self.path / "launch.json"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def places(self) -> tuple[ServerPlace, ServerPlace]:
        """The places of the server and its spare."""
        return ServerPlace(self.path), ServerPlace(self.path / "spare")

    def state(self) -> ServerState | None:
        """Return the running server, or None without a file, or with one that tidegate did not write."""
        try:
            value = json.loads(self.state_file.read_text(encoding="utf-8"))
            match value:
                case {"format": 1, "port": int(port), "started": str(started)} if 0 < port < 65536:
                    server, watchdog, spare = (value.get(name) for name in ("server", "watchdog", "spare"))
                    return ServerState(
                        port,
                        ProcessId.from_json(server),
                        ProcessId.from_json(watchdog),
                        started,
                        ProcessId.from_json(spare) if spare is not None else None,
                    )
        except (OSError, ValueError, RecursionError, Invalid):
            pass
        return None

    def write_state(self, state: ServerState) -> str:
        """Announce that the server is ready. Return the content of the file."""
        value = {
            "format": 1,
            "port": state.port,
            "started": state.started,
            "server": state.server.to_json(),
            "watchdog": state.watchdog.to_json(),
            "spare": state.spare.to_json() if state.spare is not None else None,
        }
        text = json.dumps(value, indent=1) + "\n"
        self.write_private(self.state_file, text)
        return text

    def watchdog(self) -> ProcessId | None:
        """Return the last process that took the watch lock."""
        try:
            return ProcessId.from_json(json.loads(self.watch_lock.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError, Invalid):
            return None

    def launch(self) -> Launch:
        """Return the record of `write_launch`."""
        value = json.loads(self.launch_file.read_text(encoding="utf-8"))
        return Launch(**(value | {"commands": tuple(map(tuple, value["commands"]))}))

    def write_launch(self, launch: Launch) -> None:
        self.write_private(self.launch_file, json.dumps(vars(launch), indent=1) + "\n")

    def write_properties(self, place: ServerPlace, conf: Mapping[str, str]) -> None:
        """Write Spark's configuration, which may contain passwords."""
        self.write_private(place.properties_file, properties(conf))

    def write_private(self, path: Path, text: str) -> None:
        """Write a file that only this user can read, atomically."""
        temporary = path.with_name(f".{path.name}.{seams.new_id()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)

    def forget(self) -> None:
        """Remove the files of a server that is gone, so that the next client does not mistake it for a running one."""
        for path in (self.state_file, self.token_file, self.places[0].properties_file):
            path.unlink(missing_ok=True)
        for path in (self.places[0].scratch, self.places[1].path):
            shutil.rmtree(path, ignore_errors=True)


def private_folder(path: Path) -> Path:
    """Create a folder that only this user can read, or check that an existing one is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise Invalid(
            f"{path} is not a folder of user {os.getuid()}.",
            expected="a folder that belongs to the user who runs tidegate: it contains the Spark server's token",
            help="Run tidegate as the user who owns it, or in your own project folder.",
            reason="SPARK_HOME",
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        path.chmod(0o700)
    return path
