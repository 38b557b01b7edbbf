"""Builds the image, enters it as its user, and makes a checkpoint of the example there: `make image`.

Uses Docker if it is there, else buildah, which needs no daemon: as root it builds and runs without namespaces. Where
the base image cannot be pulled, PYTHON_IMAGE=debootstrap makes one of Debian's packages under the same name. The
container is thrown away at the end, with its folder /var/lib/tidegate; the image stays.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
DEBIAN = "localhost/python:3.11-slim-bookworm"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
STORY = """
set -e
id
python -m jobs.orders_feed --files 3
tidegate run jobs.orders:pipeline --checkpoints 1
tidegate doctor orders
tidegate spark stop --force
tidegate list orders --json > /tmp/listed.json
echo "LISTED $(cat /tmp/listed.json | tr -d '\\n')"
"""
"""What its user does in the container: input, a checkpoint, and a look at all that it has made."""
BASE = """FROM scratch
ADD rootfs.tar /
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_NATIVE_TLS=1 PIP_CERT=/etc/ssl/certs/ca-certificates.crt
"""


def main() -> int:
    """Build it, and tell what was made in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="", help="the image of Python to build on; debootstrap: make one here")
    asked = parser.parse_args()
    engine = find_engine()
    base = asked.base
    if base == "debootstrap":
        base = make_base(engine)
    name = f"tidegate:{version()}"
    began = time.monotonic()
    build(engine, [*(["--build-arg", f"PYTHON={base}"] if base else []), "-t", name, str(ROOT)])
    print(f"image: {name} is built, in {time.monotonic() - began:.0f} s", flush=True)
    listed = enter(engine, name)
    made = [row for row in listed["checkpoints"] if row["state"] == "completed"]
    if not made:
        print("image: no checkpoint was completed in it", file=sys.stderr)
        return 1
    print(f"image: checkpoint {made[0]['id']} was made in it, and doctor finds nothing wrong")
    return 0


def version() -> str:
    """The version of the package, which is the image's."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return str(found)


def find_engine() -> list[str]:
    """The engine's command. buildah as root in a container has neither namespaces nor overlays."""
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
        return ["docker"]
    if shutil.which("buildah"):
        if os.getuid() == 0:
            os.environ.setdefault("STORAGE_DRIVER", "vfs")
        return ["buildah"]
    sys.exit("image: no Docker answers, and there is no buildah.\n  Help: Debian: sudo apt-get install buildah")


def build(engine: Sequence[str], words: Sequence[str]) -> None:
    """Build an image from a Dockerfile."""
    own = ["build"] if engine[0] == "docker" else ["bud", "--layers", *_isolation()]
    run([*engine, *own, *words])


def enter(engine: Sequence[str], name: str) -> dict[str, list[dict[str, object]]]:
    """Let the image's user make a checkpoint in a new container, and return what `tidegate list` tells of it."""
    if engine[0] == "docker":
        said = run([*engine, "run", "--rm", name, "sh", "-c", STORY], capture=True)
    else:
        container = run([*engine, "from", f"localhost/{name}"], capture=True).split()[-1]
        try:  # buildah goes by no ENTRYPOINT
            said = run(
                [*engine, "run", *_isolation(), container, "--", "sh", "-c", f"umask 077\n{STORY}"], capture=True
            )
        finally:
            run([*engine, "rm", container], capture=True)
    print(said, flush=True)
    listed: dict[str, list[dict[str, object]]] = json.loads(said.rpartition("LISTED ")[2])
    return listed


def make_base(engine: Sequence[str]) -> str:
    """Make an image of Python from Debian's packages, with the certificates of this machine."""
    with tempfile.TemporaryDirectory(prefix="tidegate-image-") as folder:
        rootfs, context = Path(folder, "rootfs"), Path(folder, "context")
        context.mkdir()
        packages = "ca-certificates,python3,python3-venv,python3-pip"
        run(["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(rootfs)])
        run(["tar", "-C", str(rootfs), "-cf", str(context / "rootfs.tar"), "."])
        shutil.copy(CERTIFICATES, context)
        (context / "Dockerfile").write_text(BASE, encoding="utf-8")
        build(engine, ["-t", DEBIAN, str(context)])
    return DEBIAN


def _isolation() -> list[str]:
    return ["--isolation", "chroot"] if os.getuid() == 0 else []


def run(words: Sequence[str], *, capture: bool = False) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(words, stdout=subprocess.PIPE if capture else None, text=True)
    if done.returncode != 0:
        sys.exit(f"image: {' '.join(words[:4])} … has failed with {done.returncode}\n{done.stdout or ''}")
    return done.stdout or ""


if __name__ == "__main__":
    sys.exit(main())
