"""A held checkpoint is a required action of Airflow's: in a real Airflow with roles, and in a real browser.

One Airflow, one pipeline, one story: each test continues where the one before it stopped.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dags.project import ODD_IS_BAD, Made
from tests.dags.server import Run, is_busy
from tests.kit.sampling import in_turn
from tests.kit.waiting import PATIENCE_S, eventually
from tests.ui.airflow_with_roles import AirflowWithRoles
from tests.ui.browser import Browser, Page
from tidegate.checkpoint import approvals
from tidegate.errors import Rejected
from tidegate.records.records import Answer

pytestmark = in_turn(seconds=200)

SHOTS = os.environ.get("SHOTS")
"""A folder for pictures of the pages, to look at."""
WRITES_DOWN = """
def raises(context):
    raise RuntimeError("this notifier is broken")

def write_down(context):
    with (HERE / "told").open("a") as file:
        print(context["tidegate"]["summary"], file=file)

NOTIFY = {"held": [raises, write_down]}
"""
OPTIONS = {"Approve": "approved", "Quarantine": "quarantined", "Reject": "rejected"}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowWithRoles]:
    airflow = AirflowWithRoles(tmp_path_factory.mktemp("airflow"), AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL="2")
    made = airflow.project.pipeline("asks", gate=WRITES_DOWN + ODD_IS_BAD, interval="never", arguments="notify=NOTIFY")
    (made.folder / "policy").write_text("hold")
    with airflow as started:
        started.known("asks")
        yield started


@pytest.fixture(scope="module")
def made(airflow: AirflowWithRoles) -> Made:
    return Made(airflow.project, "asks")


@pytest.fixture(scope="module")
def page(airflow: AirflowWithRoles) -> Iterator[Page]:
    with Browser() as browser:
        yield airflow.page(browser, "user")


def _request(airflow: AirflowWithRoles, method: str, path: str, body: object, bearer: str = "") -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {bearer}"} if bearer else {})
    url = f"http://127.0.0.1:{airflow.port}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)

    def asked() -> tuple[int, Any] | None:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            told = error.read().decode()
            return None if is_busy(error.code, told) else (error.code, json.loads(told or "null"))

    status, reply = eventually(f"{method} {path} is answered", asked)
    return status, reply


class Held:
    """A run whose checkpoint is held, and the doors by which it can be answered."""

    def __init__(self, airflow: AirflowWithRoles, made: Made) -> None:
        self.airflow = airflow
        self.made = made
        made.feed()
        self.run = airflow.trigger(made.name)
        self.details = f"{self.run.path}/taskInstances/gate_checked/-1/hitlDetails"

    def asked(self) -> Held:
        """Wait until Airflow has the question."""
        eventually("the question is there", lambda: self.airflow.call("GET", self.details, fine=(404,)), 240)
        return self

    def waits(self) -> Held:
        self.run.until("gate_checked", "deferred")
        return self

    @property
    def id(self) -> int:
        return max(self.made.ledger.ids())

    def in_airflow(self, option: str, role: str = "user", note: str = "") -> int:
        """Answer under Required Actions. Returns the status."""
        body = {"chosen_options": [option], "params_input": {"note": note}}
        return _request(self.airflow, "PATCH", f"/api/v2{self.details}", body, self.airflow.token(role))[0]

    def on_page(self, action: str, role: str = "user", **words: Any) -> tuple[int, Any]:
        """Answer on our page."""
        path = f"/tidegate/api/v1/dags/{self.made.name}/actions/{action}"
        return _request(self.airflow, "POST", path, {"checkpoint": self.id, **words}, self.airflow.token(role))

    def question(self) -> dict[str, Any]:
        return dict(self.airflow.call("GET", self.details))

    def answer(self, id: int) -> Answer | None:
        return self.made.ledger.answer(id, "checked")

    def closed(self) -> dict[str, Any]:
        """Wait until Airflow shows that the question is answered."""
        eventually("the question is answered", lambda: self.question()["response_received"])
        return self.question()


def press(page: Page, text: str) -> None:
    """Press the button with this text."""
    found = f"[...document.querySelectorAll('button')].find((it) => it.innerText.trim() === {json.dumps(text)})"
    eventually(f"button {text} is there", lambda: page.look(f"!!{found} && !{found}.disabled"))
    page.run(f"{found}.click()")


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(Path(SHOTS, f"{name}.png"))


def opened(page: Page, airflow: AirflowWithRoles, held: Held) -> None:
    """Go to the gate's question in Airflow's pages."""
    run = held.run.path.replace("/dagRuns/", "/runs/")
    page.goto(f"http://127.0.0.1:{airflow.port}{run}/tasks/gate_checked/required_actions")


def told(page: Page) -> str:
    """What the page shows, also in its fields."""
    return str(page.run("document.body.innerText + [...document.querySelectorAll('input')].map((it) => it.value)"))


def test_who_may_only_look_is_refused_at_both_doors(airflow: AirflowWithRoles, made: Made):
    """Airflow and the page ask for one right, so nobody answers at one door who may not at the other."""
    held = Held(airflow, made).waits()
    told = (made.folder / "told").read_text()
    assert told == f"gate checked holds checkpoint {held.id} until somebody answers: even\n"
    assert held.in_airflow("Approve", role="viewer") == 403
    assert held.on_page("approve", role="viewer")[0] == 403
    assert held.answer(held.id) is None
    assert not held.question()["response_received"]
    assert held.on_page("approve", role="op")[0] == 200, "somebody else may"
    assert held.run.ended() == "success"


def test_it_is_approved_under_required_actions(airflow: AirflowWithRoles, made: Made, page: Page):
    held = Held(airflow, made).waits()
    id = held.id
    page.goto(f"http://127.0.0.1:{airflow.port}/required_actions")
    page.has(f"Gate checked holds checkpoint {id} of asks")
    shot(page, "list")
    opened(page, airflow, held)
    page.has("2 rows are odd")
    shot(page, "question")
    link = "[...document.querySelectorAll('a')].find((it) => it.innerText.includes('the page of checkpoint')).href"
    there = page.run(link)
    press(page, "Approve")
    assert held.run.ended() == "success"
    answer = held.answer(id)
    assert answer is not None
    assert (answer.choice, answer.by) == ("approved", "user in Airflow")
    assert made.outcomes()[-1] == "completed"
    page.goto(there)
    page.here = "document.querySelector('iframe')?.contentDocument"
    page.has(f"Checkpoint #{id}", "main")
    page.has("by user in Airflow", "main")
    shot(page, "page-approved")
    page.here = "document"


def test_what_broke_the_rules_goes_to_quarantine_and_the_rest_is_published(
    airflow: AirflowWithRoles, made: Made, page: Page
):
    before = len(made.rows("every"))
    held = Held(airflow, made).waits()
    opened(page, airflow, held)
    press(page, "Quarantine")
    assert held.run.ended() == "success"
    assert held.run.tasks()["complete"] == "skipped", "it published nothing; another run does"
    again = airflow.runs("asks")[-1]
    assert again.ended() == "success"
    assert made.outcomes()[-2:] == ["GATE_QUARANTINED", "completed"]
    verdict = next(iter(made.entries[-1].acks.values())).ack.gates["checked"]
    assert (verdict.outcome, verdict.quarantined) == ("quarantine", 2)
    assert len(made.rows("every")) == before + 2
    opened(page, airflow, held)
    page.has("Gate checked holds")
    shot(page, "answered")


def test_what_is_answered_elsewhere_cannot_be_answered_in_airflow_any_more(
    airflow: AirflowWithRoles, made: Made, page: Page
):
    held = Held(airflow, made).waits()
    id = held.id
    assert held.on_page("reject", quarantine=True, note="as agreed")[0] == 200
    question = held.closed()
    assert question["chosen_options"] == ["Quarantine"]
    assert question["params_input"] == {"note": "quarantined by user in Airflow: as agreed"}
    assert held.in_airflow("Approve") == 409
    status, refused = held.on_page("approve", role="op", gate="checked")
    assert status == 409
    assert "user in Airflow" in json.dumps(refused) or "aborted" in json.dumps(refused), "told who was first"
    assert held.run.ended() == "success"
    opened(page, airflow, held)
    eventually("the page shows who has answered", lambda: "quarantined by user in Airflow" in told(page))
    shot(page, "answered-elsewhere")
    assert airflow.runs("asks")[-1].ended() == "success"
    assert made.outcomes()[-2:] == ["GATE_QUARANTINED", "completed"]
    assert held.answer(id) is not None


def test_of_people_who_answer_at_once_one_counts_and_all_are_told(airflow: AirflowWithRoles, made: Made):
    held = Held(airflow, made).waits()
    id = held.id
    replies: dict[str, Any] = {}

    def by_command() -> Any:
        try:
            return [answer.by for answer in approvals.answer(made.ledger, id, None, approve=True, by="a command")]
        except Rejected as late:
            return late.what

    doors: dict[str, Callable[[], Any]] = {
        "in Airflow": lambda: held.in_airflow("Reject", role="user"),
        "on the page": lambda: held.on_page("reject", role="admin", quarantine=True),
        "by command": by_command,
    }
    ready = threading.Barrier(len(doors))

    def through(name: str) -> None:
        ready.wait()
        replies[name] = doors[name]()

    threads = [threading.Thread(target=through, args=(name,)) for name in doors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held.run.ended()
    first = held.answer(id)
    assert first is not None
    assert replies["in Airflow"] == 200 or first.by != "user in Airflow", replies
    status, reply = replies["on the page"]
    assert first.by in json.dumps(reply) or f"checkpoint {id} is" in json.dumps(reply), replies
    assert (status == 200) is (first.by == "admin in Airflow"), replies
    assert first.by in str(replies["by command"]) or f"checkpoint {id} is" in str(replies["by command"]), replies
    shown = held.closed()
    option = next(option for option, choice in OPTIONS.items() if choice == first.choice)
    assert shown["chosen_options"] == [option], "Airflow shows the answer that counts, whoever pressed what there"
    last: Run = airflow.runs("asks")[-1]
    last.ended()


@pytest.mark.parametrize("turn", range(int(os.environ.get("TURNS", "2"))))
def test_an_answer_at_once_is_not_lost(airflow: AirflowWithRoles, made: Made, turn: int):
    """As soon as Airflow has the question: the task's worker is still at work then, and Airflow may try it again."""
    if made.outcomes()[-1] == "GATE_REJECTED":
        _request(airflow, "POST", "/tidegate/api/v1/dags/asks/actions/resume", {}, airflow.token("admin"))
    person = airflow.token("user")
    held = Held(airflow, made).asked()
    id = held.id
    body = {"chosen_options": ["Approve"], "params_input": {"note": "at once"}}
    assert _request(airflow, "PATCH", f"/api/v2{held.details}", body, person)[0] == 200
    assert held.run.ended() == "success"
    answer = held.answer(id)
    assert answer is not None
    assert (answer.choice, answer.by, answer.note) == ("approved", "user in Airflow", "at once")
    print("tries", held.run.tries()["gate_checked"])
