"""`tidegate spark serve`: a server in the foreground that a job reaches by spark.remote if it has the token."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.kit.jvm import QUICK, toml
from tests.kit.waiting import eventually
from tidegate.cli.main import main
from tidegate.cli.up.home import any_port
from tidegate.errors import TidegateError
from tidegate.spark.session import SparkSettings, session
from tidegate.spark.work import metered

TOKEN = "a-token-for-this-test-0123456789"


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "tidegate.toml").write_text('[spark]\nmemory = "1g"\nmaster = "local[2]"\n' + toml(QUICK))
    free = any_port()
    command = [sys.executable, "-m", "tidegate", "spark", "serve", "--port", str(free), "--token-file", "token"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def listens() -> bool:
        assert server.poll() is None, (folder / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", free)) == 0

    try:
        eventually("the server listens", listens)
        yield free
    finally:
        server.terminate()
        server.wait(60)


def test_a_job_reaches_it_with_the_token(port):
    with session(SparkSettings(remote=f"sc://localhost:{port}/;token={TOKEN}")) as spark:
        assert spark.range(1000).count() == 1000
        assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
        assert "DeltaSparkSessionExtension" in spark.conf.get("spark.sql.extensions")
        with metered(spark) as meter:
            assert spark.range(1000).count() == 1000
            work = meter.collect_work()[None]
        assert (work.queries, work.jobs) == (1, 2), "it counts what it does"


def test_without_the_right_token_it_is_refused(port):
    wrong = f"sc://localhost:{port}/;token=another-token-0123456789"
    with pytest.raises(TidegateError, match="refuses the token"), session(SparkSettings(remote=wrong)) as spark:
        spark.range(1).count()


def test_it_listens_on_loopback_only(port):
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, type=socket.SOCK_STREAM)}
    for address in others - {"127.0.0.1", "::1"}:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            assert probe.connect_ex((address, port)) != 0


@pytest.mark.parametrize("text", ["", "short", "with spaces in it 0123456789", "semicolon;semicolon;0123456789"])
def test_a_file_that_holds_no_token_is_refused(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text(text)
    assert main(["spark", "serve", "--token-file", "token"]) == 2
    said = capsys.readouterr().err
    assert "contains no token" in said
    assert not text or text not in said


@pytest.mark.parametrize("port", ["80", "70000", "x"])
def test_a_port_that_spark_does_not_take_is_refused(port, capsys):
    assert main(["spark", "serve", "--token-file", "token", "--port", port]) == 2
    assert "is not a whole number from 1024 to 65535" in capsys.readouterr().err
