"""tools/setup.py: every way it can go wrong is a clear message, and the next call repairs it."""

import errno
import hashlib
import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
import tomllib

from tools import setup

ROOT = Path(__file__).resolve().parents[2]
JAR = b"the jar " * 1000
JAR_PATH = "/org/example/some-lib/1.0/some-lib-1.0.jar"


def program(path: Path, script: str) -> Path:
    """A fake program: a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def java(path: Path, version: str) -> Path:
    return program(path, f"echo 'openjdk version \"{version}\" 2020-01-01' >&2")


# -- Python and Java -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_java_17_and_newer_will_do(version, tmp_path, monkeypatch):
    java(tmp_path / "java", version)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    setup.check_java()


@pytest.mark.parametrize(("version", "major"), [("11.0.2", 11), ("1.8.0_402", 8), ("16.0.1", 16)])
def test_older_java_is_refused_with_the_command_that_installs_a_newer_one(version, major, tmp_path, monkeypatch):
    java(tmp_path / "java", version)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(setup.Problem, match=rf"{tmp_path}/java \(PATH\) is Java {major}, too old") as problem:
        setup.check_java()
    assert "apt-get install openjdk-17" in str(problem.value)
    assert "brew install openjdk@17" in str(problem.value)


def test_java_home_counts_before_path_as_it_does_for_spark(tmp_path, monkeypatch):
    java(tmp_path / "path/java", "17.0.1")
    java(tmp_path / "home/bin/java", "11.0.2")
    monkeypatch.setenv("PATH", f"{tmp_path}/path:/bin")
    monkeypatch.setenv("JAVA_HOME", f"{tmp_path}/home")
    with pytest.raises(setup.Problem, match="JAVA_HOME=.*is Java 11.*") as problem:
        setup.check_java()
    assert "correct or unset JAVA_HOME" in str(problem.value)


@pytest.mark.parametrize("home", [None, "nowhere"])
def test_missing_java_is_told(home, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
    with pytest.raises(setup.Problem, match="There is no Java"):
        setup.check_java()


@pytest.mark.parametrize("script", ["echo 'Unable to locate a Java Runtime.' >&2; exit 1", "echo hello"])
def test_a_java_that_cannot_tell_its_version_is_refused(script, tmp_path, monkeypatch):
    program(tmp_path / "bin/java", script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(setup.Problem, match="does not tell its version"):
        setup.check_java()


def test_another_python_is_refused(monkeypatch):
    monkeypatch.setattr(setup.sys, "version_info", (3, 12, 1))
    with pytest.raises(setup.Problem, match="Expected: Python 3.11") as problem:
        setup.check_python()
    assert "apt-get install python3.11" in str(problem.value)


@pytest.mark.parametrize("found", ["Python 3.9.2", None])
def test_no_python_311_on_the_machine_is_told_before_any_python_runs(found, tmp_path):
    for name in ("dirname", "head", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name))
    if found:
        program(tmp_path / "python3", f'[ "$1" = --version ] && echo "{found}" || exit 1')
    answer = subprocess.run(
        ["/bin/sh", ROOT / "tools/setup.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert answer.returncode == 3
    assert "No Python 3.11 on this machine" in answer.stderr
    assert (found or "not found") in answer.stderr
    assert "apt-get install python3.11 python3.11-venv" in answer.stderr
    assert "brew install python@3.11" in answer.stderr


# -- jars ------------------------------------------------------------------------------------------


class Registry(http.server.ThreadingHTTPServer):
    """A jar registry on loopback: answers with `body`, breaks the line of the first `broken` requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), RegistryHandler)
        self.body: bytes = JAR
        self.broken = 0
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class RegistryHandler(http.server.BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self.path != JAR_PATH:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        broken = self.server.broken > 0
        self.server.broken -= broken
        self.wfile.write(self.server.body[: 10 if broken else None])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def registry(monkeypatch):
    server = Registry()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("MAVEN_MIRROR_URL", server.url)
    monkeypatch.setattr(setup.fetching.time, "sleep", lambda seconds: None)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def jar_list(tmp_path):
    return write_jar_list(tmp_path / "jars.toml", "some-lib")


def write_jar_list(path: Path, name: str) -> Path:
    sha256 = hashlib.sha256(JAR).hexdigest()
    path.write_text(
        f'[[jar]]\ngroup = "org.example"\nname = "{name}"\nversion = "1.0"\nsize = {len(JAR)}\nsha256 = "{sha256}"\n'
    )
    return path


def unreachable_url() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_repaired(jar_list: Path, folder: Path) -> None:
    setup.fetch_jars(jar_list, folder)
    assert files(folder) == {"some-lib-1.0.jar": JAR}


def test_jars_are_fetched_once(registry, jar_list, tmp_path):
    assert_repaired(jar_list, tmp_path / "jars")
    assert_repaired(jar_list, tmp_path / "jars")
    assert registry.requests == [JAR_PATH]


@pytest.mark.parametrize("body", [b"X" + JAR[1:], JAR[:-1], JAR + b"more", b"", b"<html>log in first</html>"])
def test_a_jar_with_another_hash_is_refused_and_not_kept(body, registry, jar_list, tmp_path):
    registry.body = body
    with pytest.raises(setup.Problem, match="is not the expected file: sha256") as problem:
        setup.fetch_jars(jar_list, tmp_path / "jars")
    assert hashlib.sha256(JAR).hexdigest() in str(problem.value)
    assert files(tmp_path / "jars") == {}
    registry.body = JAR
    assert_repaired(jar_list, tmp_path / "jars")


def test_a_broken_line_is_tried_again(registry, jar_list, tmp_path):
    registry.broken = 2
    assert_repaired(jar_list, tmp_path / "jars")
    assert len(registry.requests) == 3


def test_a_line_that_stays_broken_is_told(registry, jar_list, tmp_path):
    registry.broken = 99
    with pytest.raises(setup.Problem, match="the connection broke after 10 bytes"):
        setup.fetch_jars(jar_list, tmp_path / "jars")
    assert files(tmp_path / "jars") == {}
    registry.broken = 0
    assert_repaired(jar_list, tmp_path / "jars")


def test_a_jar_that_the_registry_does_not_have_is_told_at_once(registry, tmp_path):
    jar_list = write_jar_list(tmp_path / "jars.toml", "unknown")
    with pytest.raises(setup.Problem, match="the server answers 404"):
        setup.fetch_jars(jar_list, tmp_path / "jars")
    assert len(registry.requests) == 1


@pytest.mark.parametrize("url", [None, "not a url", "http://256.1.1.1:99999"])
def test_no_network_is_told_with_the_variable_that_names_a_mirror(url, registry, jar_list, tmp_path, monkeypatch):
    monkeypatch.setenv("MAVEN_MIRROR_URL", url or unreachable_url())
    with pytest.raises(setup.Problem, match="Cannot download") as problem:
        setup.fetch_jars(jar_list, tmp_path / "jars")
    assert "set MAVEN_MIRROR_URL to a mirror" in str(problem.value)
    monkeypatch.setenv("MAVEN_MIRROR_URL", registry.url)
    assert_repaired(jar_list, tmp_path / "jars")


def test_damaged_strange_and_half_fetched_files_are_mended(registry, jar_list, tmp_path):
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "some-lib-1.0.jar").write_bytes(b"X" + JAR[1:])
    (folder / "some-lib-0.9.jar").write_bytes(b"of an older list")
    (folder / "some-lib-1.0.jar.part").write_bytes(b"killed in the middle")
    assert_repaired(jar_list, folder)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_and_leaves_nothing(code, registry, jar_list, tmp_path, monkeypatch):
    def full(path, body):
        path.write_bytes(body[:100])
        raise OSError(code, os.strerror(code), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(setup.fetching, "write", full)
        with pytest.raises(setup.Problem, match=r"The disk is full: cannot write .*some-lib-1\.0\.jar"):
            setup.fetch_jars(jar_list, tmp_path / "jars")
    assert files(tmp_path / "jars") == {}
    assert_repaired(jar_list, tmp_path / "jars")


# -- uv and .venv ----------------------------------------------------------------------------------


class Checkout:
    """A checkout whose uv is fake: it makes a .venv, tells whether one is right, or fails."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.in_sync = root / "in-sync"
        self.fails = root / "fails"
        self.uv = program(
            root / "uv",
            f"""
            case "$*" in *--check*) [ -e {self.in_sync} ]; exit ;; esac
            echo "$*" >> {root}/calls
            [ -e {self.fails} ] && {{ mkdir -p {self.venv}/half; exit 2; }}
            mkdir -p {self.venv}/bin && ln -sf {sys.executable} {self.venv}/bin/python && touch {self.in_sync}
            """,
        )

    def install(self) -> int:
        """Sets up; returns how often uv was asked to install something."""
        before = self.calls
        setup.install_packages(self.root, self.uv)
        return self.calls - before

    @property
    def calls(self) -> int:
        log = self.root / "calls"
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_packages_are_installed_once(checkout):
    assert checkout.install() == 1
    assert checkout.install() == 0


def test_packages_are_compiled_when_they_are_installed(checkout):
    checkout.install()
    assert "--compile-bytecode" in (checkout.root / "calls").read_text()


def test_a_changed_lock_is_installed_into_the_same_venv(checkout):
    checkout.install()
    (checkout.venv / "mine").touch()
    checkout.in_sync.unlink()
    assert checkout.install() == 1
    assert (checkout.venv / "mine").exists()


def test_a_failed_installation_is_told_and_the_next_call_starts_afresh(checkout):
    checkout.fails.touch()
    with pytest.raises(setup.Problem, match="uv could not install the locked packages") as problem:
        checkout.install()
    assert "Check the network" in str(problem.value)
    checkout.fails.unlink()
    checkout.in_sync.touch()
    assert checkout.install() == 1, "what the failed call left was trusted"
    assert not (checkout.venv / "half").exists()


@pytest.mark.parametrize("damage", ["no python", "dead python", "no stamp", "another python's", "torn stamp"])
def test_a_broken_venv_is_replaced(damage, checkout):
    checkout.install()
    (checkout.venv / "leftover").touch()
    python, stamp = checkout.venv / "bin/python", checkout.venv / "tidegate-setup"
    match damage:
        case "no python":
            python.unlink()
        case "dead python":
            python.unlink()
            python.symlink_to("/nowhere/python3.11")
        case "no stamp":
            stamp.unlink()
        case "another python's":
            stamp.write_text("/elsewhere/python3.11 3.11.1\n")
        case "torn stamp":
            stamp.write_bytes(b"\xff\x00")
    assert checkout.install() == 1
    assert not (checkout.venv / "leftover").exists()
    assert checkout.install() == 0


def test_too_little_room_is_told_before_anything_is_written(checkout, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: usage(10**12, 10**12, 10**9))
    with pytest.raises(setup.Problem, match="Only 1.0 GB are free"):
        checkout.install()
    assert not checkout.venv.exists()
    monkeypatch.undo()
    assert checkout.install() == 1


def test_a_disk_that_fills_up_on_the_way_is_told(checkout, monkeypatch):
    usage = namedtuple("usage", "total used free")
    left = iter([10**12, 1000])
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: usage(10**12, 0, next(left)))
    checkout.fails.touch()
    with pytest.raises(setup.Problem, match="the disk is full"):
        checkout.install()


def test_uv_comes_from_the_lock_with_its_hashes():
    version, hashes = setup.locked_uv(ROOT / "uv.lock")
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["bootstrap"]
    assert pinned == [f"uv=={version}"]
    assert len(hashes) > 10
    assert all(each.startswith("sha256:") for each in hashes)


def test_uv_of_another_version_or_torn_is_replaced(tmp_path, monkeypatch):
    version, _ = setup.locked_uv(ROOT / "uv.lock")
    uv = program(tmp_path / "bin/uv", f"echo uv {version}")
    assert setup.install_uv(ROOT, tmp_path) == uv

    installed = []
    monkeypatch.setattr(setup, "_install", lambda root, command, failed: installed.append(command))
    monkeypatch.setattr(setup, "_succeeds", lambda command: True)
    for script in ("echo uv 0.1.0", "exit 1", f"echo uv {version}1"):
        program(tmp_path / "bin/uv", script)
        setup.install_uv(ROOT, tmp_path)
    assert len(installed) == 3
    assert all("--require-hashes" in command for command in installed)


# -- the whole -------------------------------------------------------------------------------------


def run_setup(root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """tools/setup.sh with no way out of this machine."""
    nowhere = unreachable_url()
    closed = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
        "PIP_INDEX_URL": nowhere,
        "UV_OFFLINE": "1",
        "MAVEN_MIRROR_URL": nowhere,
        "PYTHON": os.path.realpath(sys.executable),
        "no_proxy": "127.0.0.1",
    }
    return subprocess.run(
        [root / "tools/setup.sh"], env=os.environ | closed | environment, capture_output=True, text=True
    )


def copy_checkout(to: Path) -> Path:
    for name in ("pyproject.toml", "uv.lock", "LICENSE"):
        shutil.copy(ROOT / name, to / name)
    shutil.copytree(ROOT / "tools", to / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (to / "include/tidegate/spark").mkdir(parents=True)
    for name in re.findall(r"include/tidegate/spark/([\w.-]+)", (ROOT / "Dockerfile").read_text()):
        shutil.copy(ROOT / "include/tidegate/spark" / name, to / "include/tidegate/spark")
    return to


def test_a_checkout_that_is_set_up_needs_no_network_and_says_nothing():
    answer = run_setup(ROOT)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_fresh_clone_without_network_is_told_without_a_traceback(tmp_path):
    answer = run_setup(copy_checkout(tmp_path))
    assert answer.returncode == 3
    assert "setup: pip could not install uv" in answer.stderr
    assert "Help: Check the network" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_uv_without_network_is_told_without_a_traceback(tmp_path):
    root = copy_checkout(tmp_path)
    shutil.copytree(ROOT / ".cache/uv", root / ".cache/uv", symlinks=True)
    answer = run_setup(root, UV_CACHE_DIR=str(tmp_path / "empty"))
    assert answer.returncode == 3
    assert "setup: uv could not install the locked packages" in answer.stderr
    assert "Help: Check the network" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (root / ".venv/tidegate-setup").exists()


def test_an_incomplete_clone_and_an_interruption_are_told_without_a_traceback(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(setup, "check_java", lambda: None)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    assert setup.main() == 3
    assert "uv.lock: No such file" in capsys.readouterr().err

    def interrupted(root):
        raise KeyboardInterrupt

    monkeypatch.setattr(setup, "set_up", interrupted)
    assert setup.main() == 130
    assert "`make setup` continues from here" in capsys.readouterr().err


def test_a_second_set_up_waits_for_the_first(tmp_path, monkeypatch):
    order = []
    said, waits = [], threading.Event()

    def say(text):
        said.append(text)
        waits.set()

    monkeypatch.setattr(setup, "say", say)

    def second():
        with setup.locked(tmp_path / "lock"):
            order.append("second")

    thread = threading.Thread(target=second)
    with setup.locked(tmp_path / "lock"):
        thread.start()
        waits.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert said == ["waiting for another set-up of this checkout"]


def test_make_alone_tells_every_target():
    answer = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, check=True)
    for target in ("setup", "run", "test", "test-fast", "lint", "bench", "fuzz", "clean", "help"):
        assert f"\n  {target} " in answer.stdout
