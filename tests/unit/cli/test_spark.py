"""spark start|status|stop: what they say and answer with. The server itself: tests/spark and tests/unit/spark."""

import pytest

from tests.unit.spark.conftest import Servers


@pytest.fixture
def servers(folder, monkeypatch):
    from tidegate.spark.server import server as connect_server

    servers = Servers(folder / ".tidegate" / "spark")
    monkeypatch.setattr(connect_server, "command", servers.command)
    monkeypatch.setattr(connect_server, "check_answers", lambda builder, timeout: None)
    monkeypatch.setattr(connect_server, "loopback", lambda port, token: None)
    yield servers
    servers.end()


def test_from_nothing_to_nothing(servers, tidegate):
    said = tidegate("spark", "status")
    assert said.code == 1
    assert "No Spark server is running" in said.out
    said = tidegate("spark", "start")
    assert said.code == 0
    assert "Spark started in" in said.out
    said = tidegate("spark", "start", "--json")
    assert said.json["fresh"] is False
    server = said.json["server"]
    assert "token" not in server
    said = tidegate("spark", "status", "--json")
    assert said.code == 0
    assert [(s["pid"], s["state"], s["answers"]) for s in said.json["servers"]] == [(server["pid"], "idle", True)]
    assert server["log"] in tidegate("spark", "status").out
    said = tidegate("spark", "stop")
    assert said.code == 0
    assert f"process {server['pid']}" in said.out
    said = tidegate("spark", "stop", "--json")
    assert said.code == 0
    assert said.json == {"stopped": []}
    assert tidegate("spark", "status", "--json").json == {"servers": []}


def test_a_server_is_found_and_stopped_without_the_login_with_which_it_began(servers, tidegate, folder, monkeypatch):
    toml = folder / "tidegate.toml"
    toml.write_text(f'storage = "airflow:lake"\n{toml.read_text() if toml.exists() else ""}')
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://key:secret@/")
    assert tidegate("spark", "start").code == 0
    monkeypatch.delenv("AIRFLOW_CONN_LAKE")
    assert tidegate("spark", "start", "--json").json["error"]["reason"] == "NO_AIRFLOW_CONNECTION"
    assert len(tidegate("spark", "status", "--json").json["servers"]) == 1
    assert "process" in next(line for line in tidegate("doctor").out.splitlines() if "Spark server" in line)
    assert len(tidegate("spark", "stop", "--json").json["stopped"]) == 1


def test_in_use_is_no_and_force_is_yes(servers, tidegate):
    from tidegate.config import load_settings
    from tidegate.spark.server.server import acquire
    from tidegate.spark.session import spark_settings

    with acquire(spark_settings(load_settings())):
        said = tidegate("spark", "stop", "--json")
        assert said.code == 1
        assert said.json["error"]["reason"] == "SPARK_IN_USE"
        assert [s["state"] for s in tidegate("spark", "status", "--json").json["servers"]] == ["in use"]
        assert tidegate("spark", "stop", "--force").code == 0


def test_a_server_that_hangs_is_said_to(servers, tidegate, monkeypatch):
    from tidegate.cli.running import spark

    servers.how = "mute"
    monkeypatch.setattr(spark, "_ANSWER_TIMEOUT", 0.1)
    tidegate("spark", "start")
    said = tidegate("spark", "status", "--json")
    assert said.code == 3
    assert said.json["servers"][0]["state"] == "does not answer"


def test_what_is_wrong_is_told(servers, tidegate):
    servers.how = "failing"
    said = tidegate("spark", "start")
    assert said.code == 2
    assert "did not start: java.lang.IllegalArgumentException: no such thing" in said.err
    assert "server.log" in said.err
    assert tidegate("spark", "start", "-D", "spark.remote=sc://elsewhere:1").code == 2
    assert tidegate("spark").code == 2
    assert tidegate("spark", "restart").code == 2
