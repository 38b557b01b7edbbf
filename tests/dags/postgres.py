"""A real PostgreSQL on loopback, for tests: made, started and stopped here. None where Debian's package is missing."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.kit.waiting import eventually
from tidegate.cli.up.home import any_port

PASSWORD = "only-for-this-test"


def programs() -> Path | None:
    """Where initdb and postgres are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database. The server refuses to run as root, so root gives it to another user."""
    bin = programs()
    assert bin is not None
    owner = pwd.getpwnam("postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name)
    with tempfile.TemporaryDirectory(prefix="tidegate-postgres-") as made:
        folder = Path(made)
        (folder / "password").write_text(PASSWORD)
        for path in (folder, folder / "password"):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        rights = {"user": owner.pw_uid, "group": owner.pw_gid} if os.getuid() == 0 else {}
        init = [
            bin / "initdb",
            "-D",
            folder / "data",
            "-U",
            "airflow",
            "-A",
            "scram-sha-256",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        init += ["-A", "scram-sha-256", "--pwfile", folder / "password"]
        subprocess.run(init, cwd=folder, check=True, capture_output=True, **rights)
        port = any_port()
        words = ["-D", folder / "data", "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", folder]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen([bin / "postgres", *words], stdout=log, stderr=log, cwd=folder, **rights)
        try:
            eventually("PostgreSQL is ready", lambda: b"ready to accept" in (folder / "log").read_bytes(), 60)
            yield f"postgresql+psycopg2://airflow:{PASSWORD}@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(60)
