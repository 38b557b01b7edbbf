"""A real MySQL on loopback, for Airflow's metadata: made, started and stopped here, and gone with its starter.

Only Debian's unstable has one. Elsewhere `$MYSQL` may name a folder that its package mysql-server-core, and all that
this depends on, were unpacked into: then it runs with the libraries in there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kit.postgres import die_with_parent
from tests.kit.waiting import eventually
from tidegate.cli.up.home import any_port

MISSING = "there is no MySQL: apt-get install mysql-server-core, or let $MYSQL name where it was unpacked"
DATABASE = "airflow"


def program() -> list[str]:
    """The command that starts the server, without options; empty: it is not installed."""
    if unpacked := os.environ.get("MYSQL"):
        libraries = Path(unpacked, "usr/lib/x86_64-linux-gnu")
        places = f"{libraries}:{libraries / 'mysql/private'}"
        server = Path(unpacked, "usr/sbin/mysqld")
        messages = f"--lc-messages-dir={Path(unpacked, 'usr/share/mysql')}"
        loader = str(libraries / "ld-linux-x86-64.so.2")
        return [loader, "--library-path", places, str(server), "--no-defaults", messages]
    found = shutil.which("mysqld", path=f"/usr/sbin:{os.environ['PATH']}")
    return [found, "--no-defaults"] if found else []


@contextlib.contextmanager
def mysql() -> Iterator[str]:
    """The address of an empty database, for SQLAlchemy. Everybody on this machine may log in."""
    server, port = program(), any_port()
    assert server, MISSING
    with tempfile.TemporaryDirectory(prefix="tidegate-mysql-") as made:
        folder = Path(made)
        rights: dict[str, Any] = {}
        if os.getuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            rights = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        data = f"--datadir={folder / 'data'}"
        subprocess.run([*server, data, "--initialize-insecure"], cwd=folder, check=True, capture_output=True, **rights)
        first = folder / "first.sql"
        first.write_text(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci;\n")
        first.chmod(0o644)
        log = folder / "log"
        options = [
            data, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={folder / 'socket'}", "--mysqlx=OFF",
            f"--pid-file={folder / 'pid'}", f"--init-file={first}", "--skip-log-bin", "--secure-file-priv=",
            "--innodb-flush-log-at-trx-commit=2",
        ]  # fmt: skip
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*server, *options], stdout=out, stderr=out, cwd=folder, preexec_fn=die_with_parent, **rights
            )
        try:
            ready = f"port: {port}".encode()
            eventually("MySQL is ready", lambda: ready in log.read_bytes())
            yield f"mysql+mysqldb://root@127.0.0.1:{port}/{DATABASE}"
        finally:
            process.terminate()
            process.wait(60)
