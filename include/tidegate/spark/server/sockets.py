"""Connects Spark and its Python workers through sockets in a folder, instead of TCP.

Over TCP, Spark sends a worker its task in several small packets, and the system delays each until the previous one is
acknowledged (Nagle's algorithm, and delayed acknowledgement). That takes 40 ms for nearly every task, a third of a
small job.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Final

__all__ = ["socket_settings"]

_MAX_PATH_LENGTH: Final = 61
"""Spark refuses folders with longer paths, because systems limit a socket's path to 104 bytes."""


def socket_settings(folder: Path, *, begins_there: bool = False) -> dict[str, str]:
    """Return the settings for workers' sockets in this folder, which only its user may enter. Empty if it does not
    support sockets, as on some network drives, or if its path is too long.

    begins_there: the folder is the working directory of all of Spark's processes.
    """
    path = "." if begins_there else str(folder)
    if len(os.fsencode(path)) > _MAX_PATH_LENGTH or not _can_contain_sockets(folder):
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": path}


def _can_contain_sockets(folder: Path) -> bool:
    if not hasattr(socket, "AF_UNIX"):
        return False
    with contextlib.ExitStack() as opened:
        try:
            entry = os.open(folder, os.O_RDONLY)
            opened.callback(os.close, entry)
            short = f"/proc/self/fd/{entry}"  # of any length otherwise
            name = f"{short if os.path.isdir(short) else folder}/.try-{os.getpid()}.sock"
            with socket.socket(socket.AF_UNIX) as made, socket.socket(socket.AF_UNIX) as other:
                made.bind(name)
                opened.callback(os.unlink, name)
                made.listen(1)
                other.connect(name)
        except OSError:
            return False
    return True
