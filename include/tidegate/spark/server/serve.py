"""A Spark Connect server in the foreground, for deployments that run Spark in a separate container.

The embedded server (server.py) is started by the first process that needs it, and ends when it is idle. This one lives
as long as its container. Both have the same configuration, on which jobs rely.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import NoReturn

from tidegate.errors import Invalid
from tidegate.spark.conf import SparkSettings
from tidegate.spark.server.folder import ServerFolder
from tidegate.spark.server.server import command, conf_in, environment

__all__ = ["serve"]

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")


def serve(settings: SparkSettings, port: int, token_file: Path) -> NoReturn:
    """Replace this process by the server. It listens on loopback only, and clients must send the token."""
    if settings.mode != "connect" or settings.remote is not None:
        raise Invalid(
            "These settings use another Spark server, or none.",
            expected="spark.mode = connect, and no spark.remote",
            help="Unset TIDEGATE_SPARK_REMOTE where the server runs; set it where tasks run.",
        )
    folder = ServerFolder(Path(tempfile.mkdtemp(prefix="tidegate-spark-")))
    place = folder.places[0]
    place.scratch.mkdir(mode=0o700)
    conf = conf_in(place, settings) | {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": _token(token_file),
    }
    folder.write_properties(place, conf)
    words = command(place)
    os.chdir(place.scratch)
    os.execve(words[0], words, environment(settings))


def _token(file: Path) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise Invalid(f"{file} cannot be read: {error}", help="Make it readable for the server's user.") from None
    if not _TOKEN.fullmatch(token):
        raise Invalid(
            f"{file} contains no token.",
            expected="16 to 512 letters, digits and . _ ~ + / = -, on one line",
            help="Write one there.",
        )
    return token
