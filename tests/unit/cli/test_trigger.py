"""`tidegate trigger` where no Airflow can be asked, and what it refuses before it asks one. With one: tests/ui."""

from __future__ import annotations

import json

import pytest

from tidegate.cli.up.home import Home, any_port


def test_without_an_airflow_it_names_the_command_that_makes_a_checkpoint_here(project, tidegate):
    said = tidegate("trigger", "orders", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "NO_AIRFLOW")
    assert "run MODULE:pipeline --checkpoints 1" in said.json["error"]["help"]


def test_an_airflow_that_has_ended_is_none(project, tidegate):
    home = Home(project.folder)
    home.make()
    home.state_file.write_text(json.dumps({"port": any_port()}))
    said = tidegate("trigger", "orders", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "NO_AIRFLOW")
    assert "does not answer" in said.json["error"]["message"]


def test_a_run_that_would_be_skipped_is_not_made(project, tidegate):
    project.complete(1, None)
    tidegate("suspend", "orders", "--reason", "the feed is broken")
    said = tidegate("trigger", "orders", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "SUSPENDED")
    assert "the feed is broken" in said.json["error"]["message"]
    tidegate("resume", "orders")
    assert tidegate("trigger", "orders", "--json").json["error"]["reason"] == "NO_AIRFLOW"


def test_the_name_of_another_savepoint_is_refused_before_there_is_a_run(project, tidegate):
    project.complete(1, None)
    tidegate("savepoint", "create", "orders", "release")
    said = tidegate("trigger", "orders", "--savepoint", "release", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "NAME_TAKEN")


@pytest.mark.parametrize(("url", "reason"), [("airflow:8080", "BAD_AIRFLOW"), ("http://airflow:8080", "NO_TOKEN")])
def test_an_airflow_elsewhere_has_an_address_and_a_token(project, tidegate, monkeypatch, url, reason):
    monkeypatch.delenv("AIRFLOW_CLI_TOKEN", raising=False)
    said = tidegate("trigger", "orders", "--airflow", url, "--json")
    assert (said.code, said.json["error"]["reason"]) == (2, reason)
