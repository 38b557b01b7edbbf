"""Sets up everything that `make` needs: checks Python and Java, makes .venv from uv.lock, fetches the Delta jars.

    .cache/uv/       a small venv that holds nothing but uv, by version and hash from uv.lock
    .venv/           exactly what uv.lock says, and tidegate itself, editable
    .cache/jars/     the jars of include/tidegate/spark/jars.toml, by size and sha256
    .cache/jars-s3/  if S3=1 asks for them: those with which Spark reads and writes s3://
    .cache/classes/  Java's archive of Spark's classes; without it Spark starts more slowly, and nothing else changes

Each step first checks whether its result exists and is right, so a second call is quick, and a call after a
failed or interrupted one repairs. Every failure ends in a Problem: what happened, what was expected, what to do
next. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[1]
PYTHON_VERSION = (3, 11)
JAVA_VERSION = 17
SPARK = "4.2"
"""The version of Spark that uv.lock has: some jars are for one version each."""
S3_VARIABLE = "S3"
VENV_BYTES = 3_500_000_000
AGAIN = "then `make setup` again"


def load_fetching() -> Any:
    """The module of tidegate that fetches jars. By its file: nothing is installed yet."""
    file = ROOT / "include/tidegate/spark/fetching.py"
    spec = importlib.util.spec_from_file_location("tidegate_fetching", file)
    if spec is None or spec.loader is None or not file.is_file():
        sys.exit(f"setup: {file} is not there.\n  Expected: a whole checkout\n  Help: git checkout include, {AGAIN}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fetching: Any = load_fetching()
Problem = fetching.FetchFailed
"""Set-up cannot continue: what happened, what was expected, what to do next."""


def main() -> int:
    try:
        set_up(ROOT)
    except Problem as problem:
        print(f"setup: {problem}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"setup: {fetching.storage_problem(error, str(error.filename or ROOT), AGAIN)}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("\nsetup: Interrupted. `make setup` continues from here.", file=sys.stderr)
        return 130
    return 0


def set_up(root: Path) -> None:
    """Run all steps in order, one process at a time."""
    check_python()
    check_java()
    cache = root / ".cache"
    cache.mkdir(exist_ok=True)
    with locked(cache / "setup.lock"):
        uv = install_uv(root, cache / "uv")
        install_packages(root, uv)
        fetch_jars(root / "include/tidegate/spark/jars.toml", cache / "jars")
        if os.environ.get(S3_VARIABLE) or (cache / "jars-s3").is_dir():
            fetch_jars(root / "include/tidegate/spark/jars-s3.toml", cache / "jars-s3")
        prepare_classes(root, cache / "classes")


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


# -- prerequisites ---------------------------------------------------------------------------------


def check_python() -> None:
    if sys.version_info[:2] != PYTHON_VERSION:
        raise Problem(
            f"This is Python {sys.version.split()[0]} ({sys.executable}).",
            expected="Python 3.11",
            help="Debian, Ubuntu: sudo apt-get install python3.11 python3.11-venv · macOS: brew install "
            f"python@3.11 · {AGAIN}, or name one: make setup PYTHON=/path/to/python3.11",
        )


def find_java() -> str | None:
    """Return the Java that Spark will use: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin/java")) if home else shutil.which("java")


def check_java() -> None:
    home, java = os.environ.get("JAVA_HOME"), find_java()
    named = f"JAVA_HOME={home}" if home else "PATH"
    fix = {
        "expected": f"Java {JAVA_VERSION} or newer, by JAVA_HOME or on PATH",
        "help": "Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless · macOS: brew install "
        "openjdk@17 and export JAVA_HOME=$(brew --prefix openjdk@17)/libexec/openjdk.jdk/Contents/Home · "
        + ("or correct or unset JAVA_HOME · " if home else "")
        + AGAIN,
    }
    if not java or not os.access(java, os.X_OK):
        raise Problem(f"There is no Java ({named} has no java program).", **fix)
    version = java_version(java)
    if version is None:
        raise Problem(f"{java} ({named}) does not tell its version when asked with -version.", **fix)
    if version < JAVA_VERSION:
        raise Problem(f"{java} ({named}) is Java {version}, too old for Spark.", **fix)


def java_version(java: str) -> int | None:
    """Return the major version: 17 for "17.0.15", 8 for "1.8.0_402"; None if it is not known."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if answer.returncode == 0 and match else None


# -- uv and .venv ----------------------------------------------------------------------------------


def install_uv(root: Path, home: Path) -> Path:
    """Install uv with pip in its own venv, in the version and with the hash of uv.lock."""
    version, hashes = locked_uv(root / "uv.lock")
    uv = home / "bin/uv"
    if _answer([uv, "--version"]).split()[:2] == ["uv", version]:
        return uv
    say(f"installing uv {version}")
    shutil.rmtree(home, ignore_errors=True)
    if not _succeeds([sys.executable, "-m", "venv", home]):
        raise Problem(
            f"{sys.executable} cannot make a virtual environment (its words are above).",
            expected="a Python with the venv and ensurepip modules, and room on the disk",
            help=f"Debian, Ubuntu: sudo apt-get install python3.11-venv · {AGAIN}",
        )
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(f"uv=={version} " + " ".join(f"--hash={digest}" for digest in hashes) + "\n")
        requirements.flush()
        pip = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--retries", "2", "--only-binary", ":all:", "--require-hashes", "--no-deps"]
        _install(root, [*pip, "-r", requirements.name], "pip could not install uv")
    return uv


def locked_uv(lock: Path) -> tuple[str, list[str]]:
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    uv = next(package for package in packages if package["name"] == "uv")
    return uv["version"], [wheel["hash"] for wheel in uv["wheels"]]


def install_packages(root: Path, uv: Path) -> None:
    """Make .venv as uv.lock says. The stamp shows that the last installation finished."""
    venv = root / ".venv"
    stamp = venv / "tidegate-setup"
    interpreter = f"{os.path.realpath(sys.executable)} {sys.version.split()[0]}\n"
    sync = [uv, "sync", "--frozen", "--directory", root, "--python", os.path.realpath(sys.executable)]
    sound = _read(stamp) == interpreter and _answer([venv / "bin/python", "-c", "print('runs')"]) == "runs"
    if sound and _succeeds([*sync, "--check", "--inexact", "--offline"], quiet=True):
        return
    if not sound and venv.exists():
        say("replacing .venv: it is broken, unfinished or made with another Python")
        shutil.rmtree(venv)
    if not sound and shutil.disk_usage(root).free < VENV_BYTES:
        raise Problem(
            f"Only {shutil.disk_usage(root).free / 1e9:.1f} GB are free where {root} is.",
            expected=f"{VENV_BYTES / 1e9:.1f} GB for .venv, the jars and what uv keeps",
            help=f"Make room, {AGAIN}.",
        )
    say("installing what uv.lock says into .venv (about a minute the first time)")
    stamp.unlink(missing_ok=True)
    # Compiled now: where PYTHONDONTWRITEBYTECODE is set, every process would compile what it imports, for seconds.
    _install(root, [*sync, "--compile-bytecode"], "uv could not install the locked packages")
    stamp.write_text(interpreter, encoding="utf-8")


def _install(root: Path, command: list[object], failed: str) -> None:
    if _succeeds(command):
        return
    if shutil.disk_usage(root).free < 50_000_000:
        raise Problem(f"{failed}: the disk is full.", expected="room", help=f"Make room, {AGAIN}.")
    raise Problem(
        f"{failed} (its words are above).",
        expected="the Python package registry, or the mirror that pip and uv are configured with, in reach",
        help=f"Check the network and the settings of proxy and mirror, {AGAIN}; it continues from here.",
    )


# -- class archive ---------------------------------------------------------------------------------


def prepare_classes(root: Path, folder: Path) -> None:
    """Make Java's class archive once for each Java and pyspark. A failure is reported, and not tried again."""
    program, spark = root / ".venv/bin/tidegate", next(root.glob(".venv/lib/*/site-packages/pyspark/jars"), None)
    java = find_java()
    if spark is None or java is None or not (root / "include/tidegate/cli").is_dir():  # an image without the code
        return
    made_for = "\n".join(f"{path.resolve()} {path.stat().st_mtime_ns}" for path in (Path(java), spark))
    if _read(folder / "made-for") == made_for:
        return
    say("preparing Spark's class archive, with which it starts in half the time: about a minute")
    if not _succeeds([program, "spark", "prepare"], quiet=True):
        say("there is no archive, so Spark starts more slowly; `.venv/bin/tidegate spark prepare` tells why")
    folder.mkdir(exist_ok=True)
    fetching.write(folder / "made-for", made_for.encode())


# -- jars ------------------------------------------------------------------------------------------


def fetch_jars(jar_list: Path, folder: Path) -> None:
    """Fetch the listed jars, and no others, into the folder; each is checked before it gets its name."""
    listed = tomllib.loads(jar_list.read_text())["jar"]
    jars = [jar for jar in listed if jar.get("spark", SPARK) == SPARK]
    folder.mkdir(parents=True, exist_ok=True)
    for stray in set(folder.iterdir()) - {folder / f"{jar['name']}-{jar['version']}.jar" for jar in jars}:
        stray.unlink()
    fetching.fetch(jars, folder, say=say, again=AGAIN)


# -- small helpers ---------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the set-up: of two `make` at once, the second waits, then finds everything done."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _succeeds(command: list[object], *, quiet: bool = False) -> bool:
    output = subprocess.DEVNULL if quiet else None
    # Ignore an activated environment of another project.
    foreign = {"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONHOME", "PYTHONPATH"}
    environment = {name: value for name, value in os.environ.items() if name not in foreign}
    words = [str(word) for word in command]
    return subprocess.run(words, stdout=output, stderr=output, env=environment).returncode == 0


def _answer(command: list[object]) -> str:
    """Return what a command prints; nothing if it does not exist or fails."""
    try:
        answer = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
