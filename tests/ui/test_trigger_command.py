"""`tidegate trigger` and the web app that it asks: what the one sends is what the other takes."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tidegate.checkpoint import suspension
from tidegate.cli.main import main
from tidegate.cli.up import airflow as client_module
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import control


class InProcess:
    """Hands the requests of the command to the app in this process."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def open(self, request: urllib.request.Request, timeout: float) -> io.BytesIO:
        path = request.full_url.removeprefix("http://airflow")
        answer = self.app.request(
            request.get_method(), path, content=request.data, headers=dict(request.header_items())
        )
        if answer.status_code >= 400:
            raise urllib.error.HTTPError(path, answer.status_code, "", Message(), io.BytesIO(answer.content))
        return io.BytesIO(answer.content)


@pytest.fixture
def trigger(client: Any, tokens: dict[str, str], world: ToyWorld, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Run the command against the app, as a user of this role; return its exit code and its answer."""
    client.cookies.clear()
    if suspension.suspended(world.ledger.view(), 10**6) is not None:
        control.resume(world.ledger, "somebody", "")
    monkeypatch.setattr(client_module.urllib.request, "build_opener", lambda *_: InProcess(client))

    def call(*arguments: str, role: str = "admin") -> tuple[int, Any]:
        import json

        monkeypatch.setenv("AIRFLOW_CLI_TOKEN", tokens[role])
        root = ["-D", f"root={world.ledger.home.rpartition('/')[0]}"]
        code = main(["trigger", "orders", "--airflow", "http://airflow", "--json", *arguments, *root])
        return code, json.loads(capsys.readouterr().out)

    return call


def acts_of(ledger: Ledger) -> list[tuple[str, str, dict[str, Any]]]:
    return [(act.action, act.by, act.request) for act, _ in ledger.acts(1)]


def test_a_run_is_made_and_written_down_as_by_the_button_of_the_page(trigger, world):
    code, made = trigger("--note", "before the release", "--savepoint", "release")
    assert code == 0
    assert (made["dag"], made["run"].startswith("manual__")) == ("orders", True)
    asked = {"note": "before the release", "savepoint": "release"}
    assert acts_of(world.ledger) == [("trigger", "admin in Airflow", asked)]


def test_who_may_not_trigger_is_refused_by_airflow(trigger, world):
    code, said = trigger(role="viewer")
    assert (code, said["error"]["reason"]) == (3, "AIRFLOW_ANSWER")
    assert "403" in said["error"]["message"]


def test_a_dag_of_another_name_is_not_the_pipelines(trigger):
    code, said = trigger("--dag", "payments")
    assert (code, said["error"]["reason"]) == (2, "NO_SUCH_DAG")
    assert "orders" in said["error"]["message"]


def test_waiting_ends_with_the_run_also_if_it_has_made_no_checkpoint(trigger, monkeypatch):
    """No scheduler is at work here: somebody marks the run as failed."""
    monkeypatch.setattr(client_module.Airflow, "details", lambda self, dag, run: {"state": "failed"})
    code, said = trigger("--wait")
    assert (code, said["checkpoint"], said["state"]) == (1, None, "failed")
