"""Creates the secrets that compose.yaml and compose.cluster.yaml name, one file each in secrets/; existing files stay.
Standard library only.

The containers' user (uid 1000) must be able to read them. Run as root, this script makes that user their owner. Run as
another user, the files stay yours and are readable by everybody, in a folder that only you may enter.
"""

from __future__ import annotations

import base64
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "secrets"
USER = 1000

MAKE: dict[str, Callable[[], str]] = {
    "postgres_password": lambda: secrets.token_hex(24),
    "jwt": lambda: secrets.token_hex(64),
    "session": lambda: secrets.token_hex(32),
    "fernet": lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
    "ui_password": lambda: secrets.token_hex(12),
    "spark_token": lambda: secrets.token_hex(32),
    "store_password": lambda: secrets.token_hex(32),
}


def main(folder: Path = FOLDER) -> int:
    """Create the missing secrets."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for name, make in MAKE.items():
        path = folder / name
        if path.exists():
            continue
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(make())
        if os.getuid() == 0:
            os.chown(path, USER, -1)
        elif os.getuid() != USER:
            path.chmod(0o644)
        print(f"made {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
