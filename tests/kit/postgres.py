"""A real PostgreSQL on loopback, for tests: made, started, crashed and stopped here.

It dies with the process that started it, so a test that is killed leaves no server behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.kit.waiting import eventually
from tidegate.cli.up.home import any_port

PASSWORD = "only-for-this-test"
USER = "airflow"
MISSING = "there is no PostgreSQL: apt-get install postgresql"


def programs() -> Path | None:
    """Where initdb and postgres are. None: they are not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Server:
    """A server with one empty database. It refuses to run as root, so root gives it to another user."""

    def __init__(self, folder: Path, settings: Sequence[str] = (), *, copied: bool = False) -> None:
        """copied: its data will come from another server."""
        self.folder, self.settings, self.port = folder, settings, any_port()
        self._bin = programs()
        assert self._bin is not None, MISSING
        owner = pwd.getpwnam("postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name)
        self._rights: dict[str, Any] = (
            {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if os.getuid() == 0 else {}
        )
        (folder / "password").write_text(PASSWORD)
        for path in (folder, folder / "password"):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        if not copied:
            login = ["-U", USER, "-A", "scram-sha-256", "--pwfile", str(folder / "password")]
            self._call("initdb", "-D", str(folder / "data"), "-E", "UTF8", "--no-sync", *login)

    def _call(self, program: str, *words: str) -> None:
        assert self._bin is not None
        subprocess.run(
            [str(self._bin / program), *words],
            cwd=self.folder,
            env=os.environ | {"PGPASSWORD": PASSWORD},
            check=True,
            capture_output=True,
            **self._rights,
        )

    @property
    def options(self) -> dict[str, str]:
        """What libpq needs to connect."""
        return {
            "host": "127.0.0.1",
            "port": str(self.port),
            "dbname": "postgres",
            "user": USER,
            "password": PASSWORD,
        }

    @property
    def url(self) -> str:
        """The address for SQLAlchemy."""
        return f"postgresql+psycopg2://{USER}:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        assert self._bin is not None
        log = self.folder / "log"
        log.write_bytes(b"")
        words = ["-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder)]
        words += ["-c", "listen_addresses=127.0.0.1"]
        words += [word for setting in self.settings for word in ("-c", setting)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), *words],
                stdout=out,
                stderr=out,
                cwd=self.folder,
                preexec_fn=die_with_parent,
                **self._rights,
            )
        eventually("PostgreSQL is ready", lambda: b"ready to accept" in log.read_bytes())

    def crash(self) -> None:
        """Stop it at once, as `pg_ctl -m immediate` does: what it has promised is in its log, no more."""
        self._stop(signal.SIGQUIT)

    def stop(self) -> None:
        """Stop it, and end all sessions."""
        self._stop(signal.SIGINT)

    def _stop(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    # --- other histories of the same database -----------------------------------------------------------------

    def back_up(self, name: str = "backup") -> Path:
        """Copy the running server, as `pg_basebackup` does: without its slots. Return the copy's folder."""
        self._call("pg_basebackup", "-D", str(self.folder / name), "--no-sync", "-c", "fast", "-d", self._address)
        return self.folder / name

    def cold_copy(self, name: str = "cold") -> Path:
        """Copy all files of the server, which is stopped for that. Return the copy's folder."""
        self.stop()
        subprocess.run(["cp", "-a", str(self.folder / "data"), str(self.folder / name)], check=True)
        self.start()
        return self.folder / name

    def put_back(self, copy: Path, *settings: str, signal_file: str | None = None) -> None:
        """Stop the server, and start it again with the files of a copy. signal_file: "recovery.signal", to read the
        archive from there on, or "standby.signal"; settings: for that."""
        self.stop()
        subprocess.run(["rm", "-r", str(self.folder / "data")], check=True)
        subprocess.run(["cp", "-a", str(copy), str(self.folder / "data")], check=True)
        if signal_file is not None:
            with (self.folder / "data" / "postgresql.auto.conf").open("a") as out:
                out.writelines(f"{setting}\n" for setting in settings)
            made = self.folder / "data" / signal_file
            made.touch()
            shutil.copystat(copy, made)
            owner = copy.stat()
            os.chown(made, owner.st_uid, owner.st_gid)
        self.start()

    def promote(self) -> None:
        """Make a primary server of a standby."""
        self.run("SELECT pg_promote()")
        self.wait_for_writes()

    def wait_for_writes(self) -> None:
        """Wait until recovery has ended."""
        eventually("it takes writes", lambda: self.run("SELECT pg_is_in_recovery()") == [(False,)])

    @property
    def _address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres"

    # --- asking it --------------------------------------------------------------------------------------------

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements. The rows of the last one."""
        import psycopg

        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(autocommit=True, **self.options) as session:  # type: ignore[arg-type]
            for statement in statements:
                cursor = session.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows


@contextlib.contextmanager
def server(*settings: str) -> Iterator[Server]:
    """Make a server, and remove it again. settings: such as "wal_level=logical"."""
    with tempfile.TemporaryDirectory(prefix="tidegate-postgres-") as made:
        started = Server(Path(made), settings)
        try:
            started.start()
            yield started
        finally:
            started.stop()


@contextlib.contextmanager
def standby_of(primary: Server) -> Iterator[Server]:
    """Make a standby that follows a server, and remove it again."""
    with tempfile.TemporaryDirectory(prefix="tidegate-postgres-") as made:
        standby = Server(Path(made), primary.settings, copied=True)
        try:
            source = f"{primary._address} password={PASSWORD}"
            standby._call("pg_basebackup", "-D", f"{made}/data", "--no-sync", "-c", "fast", "-R", "-d", source)
            standby.start()
            yield standby
        finally:
            standby.stop()


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The address of an empty database, for Airflow."""
    with server() as started:
        yield started.url


def die_with_parent() -> None:
    """Let a process end when the one that started it ends, however that was."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
