"""Whatever the machine lacks is told in one message with the command that helps, before anything is started.

Each case breaks one thing of an environment in which `tidegate up` would start.
"""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.cli.main import main
from tidegate.cli.up import up as up_command
from tidegate.cli.up.home import Home
from tidegate.cli.up.processes import lock_project
from tidegate.spark import fetching, installation

CASES: dict[str, tuple] = {}
"""Name → (what breaks the environment and may return words for `up`, exit code, what is told, the command told)."""


def case(name: str, code: int, told: str, command: str):
    def add(breaks):
        CASES[name] = (breaks, code, told, command)
        return breaks

    return add


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, in which `tidegate up` must never come to start Airflow."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags/orders.py").write_text("mine = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(up_command.Up, "run", lambda self: pytest.fail("Airflow would be started"))
    return tmp_path


def versions(monkeypatch, module, **found: str | None) -> None:
    real = module.installed_version
    by_name = {name.replace("_", "-"): version for name, version in found.items()}
    monkeypatch.setattr(module, "installed_version", lambda name: by_name.get(name, real(name)))


def java_home(monkeypatch, folder: Path, release: str | None) -> None:
    """A folder with a program `java`, and with the file that tells its version."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/java").touch(0o755)
    if release is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="somebody"\nJAVA_VERSION="{release}"\n')
    monkeypatch.setenv("JAVA_HOME", str(folder))


@case("Airflow of an unsupported version", 2, "Airflow 2.11.0 is installed", "pip install 'tidegate[airflow]'")
def old_airflow(project, monkeypatch, stack):
    versions(monkeypatch, up_command, apache_airflow_core="2.11.0")


@case("Spark of an unsupported version", 2, "pyspark 3.5.7 is installed", "pip install 'tidegate[spark]'")
def old_spark(project, monkeypatch, stack):
    versions(monkeypatch, installation, pyspark="3.5.7")


@case("no Spark", 2, "pyspark is not installed", "pip install 'tidegate[spark]'")
def no_spark(project, monkeypatch, stack):
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)


@case("no Java", 2, "There is no Java (no `java` on the PATH)", "apt-get install default-jre-headless")
def no_java(project, monkeypatch, stack):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(project))


@case("an old Java", 2, "is Java 11", "apt-get install default-jre-headless")
def java_11(project, monkeypatch, stack):
    java_home(monkeypatch, project / "java-11", "11.0.24")


@case("a very old Java", 2, "is Java 8", "set JAVA_HOME to it")
def java_8(project, monkeypatch, stack):
    java_home(monkeypatch, project / "java-8", "1.8.0_422")


@case("missing jars in a folder of one's own", 2, "is not in", "Run `tidegate spark jars`")
def no_jars(project, monkeypatch, stack):
    (project / "jars").mkdir()
    monkeypatch.setenv("TIDEGATE_JARS", str(project / "jars"))


@case("a proxy that is not there", 3, "(through the proxy of https_proxy)", "set MAVEN_MIRROR_URL to a mirror")
def dead_proxy(project, monkeypatch, stack):
    """Jars are to be fetched, and each request must take the proxy of the environment, which nobody answers for."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of the process's first request
    for name in ("no_proxy", "NO_PROXY", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MAVEN_MIRROR_URL", raising=False)  # it may be reached without a proxy
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: None)
    monkeypatch.setattr("tidegate.spark.jars._in_checkout", lambda: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))


@case("a port that is taken", 3, "is in use by another program", "leave out --port")
def taken_port(project, monkeypatch, stack):
    taken = stack.enter_context(socket.socket())
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return ["--port", str(taken.getsockname()[1])]


@case("no permission to write", 3, "cannot be written: Permission denied", "sudo chown -R $(id -un)")
def read_only(project, monkeypatch, stack):
    real = Path.mkdir

    def refuse(path: Path, *arguments: object, **options: object) -> None:
        if ".tidegate" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        real(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", refuse)


@case("a second tidegate up", 1, "Airflow of this project is already running on http://127.0.0.1:8091", "stop that one")
def second(project, monkeypatch, stack):
    home = Home(project)
    home.make()
    home.write_private(home.state_file, '{"format": 1, "port": 8091, "processes": {}}')
    stack.enter_context(lock_project(home))


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("name", CASES)
def test_it_is_told_in_one_message_with_the_command_that_helps(project, name, monkeypatch, stack, capsys):
    breaks, code, told, command = CASES[name]
    words = breaks(project, monkeypatch, stack) or []
    assert main(["up", *words]) == code
    said = capsys.readouterr().err
    assert said.count("Help: ") == 1, said
    assert told in said
    assert command in said


def test_a_fitting_environment_is_let_through(project, monkeypatch, tmp_path):
    """Or else the cases above would show nothing."""
    started = []
    java_home(monkeypatch, tmp_path / "java-21", "21.0.8")
    monkeypatch.setattr(up_command.Up, "run", lambda self: started.append(self))
    assert main(["up"]) == 0
    assert len(started) == 1


def test_a_java_that_does_not_tell_its_version_is_let_through(monkeypatch, tmp_path):
    java_home(monkeypatch, tmp_path / "java", None)
    assert installation.find_java() == tmp_path / "java/bin/java"
