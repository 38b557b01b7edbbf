"""Fetches jars from Maven Central, or from the mirror in $MAVEN_MIRROR_URL. Each gets its name only after its sha256 is
checked, so that a folder never has an incomplete jar, and two processes can fetch at once.

This file only uses the standard library, because tools/setup.py runs it before anything is installed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["MIRROR_VARIABLE", "FetchFailed", "fetch", "sha256_of", "storage_problem", "write"]

MIRROR_VARIABLE = "MAVEN_MIRROR_URL"
MAVEN_URL = "https://repo1.maven.org/maven2"
"""The only registry host in this repository, apart from those in uv.lock."""
TIMEOUT_SECONDS = 30
TRIES = 3


class FetchFailed(Exception):
    """What happened, what was expected, what to do next."""

    def __init__(self, what: str, *, expected: str, help: str) -> None:
        self.what = what
        self.expected = expected
        self.help = help
        super().__init__(f"{what}\n  Expected: {expected}\n  Help: {help}")


def fetch(jars: Iterable[Mapping[str, Any]], folder: Path, *, say: Callable[[str], None], again: str) -> list[Path]:
    """Fetch the jars that are missing in the folder, or have other content. Return the fetched ones.

    jars: group, name, version, size and sha256 of each. again: how the reader continues, for the help of errors.
    """
    fetched = []
    base = os.environ.get(MIRROR_VARIABLE, MAVEN_URL).rstrip("/")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for jar in jars:
            name = f"{jar['name']}-{jar['version']}.jar"
            path = folder / name
            if path.is_file() and sha256_of(path) == jar["sha256"]:
                continue
            say(f"fetching {name} ({jar['size'] / 1e6:.1f} MB)")
            url = f"{base}/{jar['group'].replace('.', '/')}/{jar['name']}/{jar['version']}/{name}"
            _fetch_one(url, path, size=jar["size"], sha256=jar["sha256"], again=again)
            fetched.append(path)
    except OSError as error:
        raise storage_problem(error, str(error.filename or folder), again) from error
    return fetched


def _fetch_one(url: str, path: Path, *, size: int, sha256: str, again: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(part, _download(url, at_most=size + 1, again=again))
        if (actual := sha256_of(part)) != sha256:
            raise FetchFailed(
                f"{url} is not the expected file: sha256 {actual}, {part.stat().st_size} bytes.",
                expected=f"sha256 {sha256}, {size} bytes",
                help="The file was not kept. A proxy or mirror may have answered instead: check "
                f"{MIRROR_VARIABLE} and the proxy settings, {again}. If it keeps failing, report it.",
            )
        os.replace(part, path)
    except OSError as error:
        raise storage_problem(error, str(path), again) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _download(url: str, *, at_most: int, again: str) -> bytes:
    """Return the body of the URL, cut at a size that is too large. Retries if the connection breaks."""
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
                body: bytes = response.read(at_most)
                if len(body) < int(response.headers.get("Content-Length", 0)) and len(body) < at_most:
                    raise OSError(f"the connection broke after {len(body)} bytes")
            return body
        except urllib.error.HTTPError as error:
            raise _no_download(url, f"the server answers {error.code} {error.reason}", again) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            if attempt == TRIES:
                raise _no_download(url, str(getattr(error, "reason", error)), again) from error
            time.sleep(attempt)
    raise AssertionError("the last try returns or raises")


def write(path: Path, body: bytes) -> None:
    """Write a file durably."""
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def sha256_of(path: Path) -> str:
    """Return the hash of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _no_download(url: str, why: str, again: str) -> FetchFailed:
    proxies = sorted(name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy"))
    through = f" (through the proxy of {', '.join(proxies)})" if proxies else ""
    return FetchFailed(
        f"Cannot download {url}{through}: {why}.",
        expected=f"access to Maven Central, or to the mirror in {MIRROR_VARIABLE}",
        help=f"Check the network and proxy, or set {MIRROR_VARIABLE} to a mirror, {again}.",
    )


def storage_problem(error: OSError, where: str, again: str) -> FetchFailed:
    """Return the error for a file that cannot be read or written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchFailed(f"The disk is full: cannot write {where}.", expected="space", help=f"Free space, {again}.")
    return FetchFailed(
        f"Cannot use {where}: {error.strerror or error}.",
        expected="files that this user may read and write",
        help=f"Check the owner and the permissions, and whether the file exists, {again}.",
    )
