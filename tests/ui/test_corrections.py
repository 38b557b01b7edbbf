"""Rows in quarantine are corrected by SQL and judged again on the page, by who may, in a real Airflow and Chromium."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dags.project import Made
from tests.kit.sampling import in_turn
from tests.kit.waiting import eventually
from tests.ui.airflow_with_roles import AirflowWithRoles
from tests.ui.browser import Browser, Page

pytestmark = in_turn(seconds=200)

FRAME = "document.querySelector('iframe')?.contentDocument"
GATE = """
from tidegate.gates import Expectations

seen = seen.gate(Expectations("shop", on_failure="quarantine", private=["file"]), name="checked")
"""
SUITE = """
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: id, min_value: LEAST}, id: large}
  - {type: expect_column_values_to_not_be_in_set, kwargs: {column: id, value_set: [104]}, id: not_104}
"""


SQL = "cast(100 / (id - 1) AS long) + id + 100"
"""It fails for the row whose id is 1."""


def judge_by(airflow: AirflowWithRoles, least: int) -> None:
    folder = airflow.project.folder / "include" / "expectations"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shop.yaml").write_text(SUITE.replace("LEAST", str(least)))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowWithRoles]:
    made = AirflowWithRoles(tmp_path_factory.mktemp("airflow"))
    made.project.pipeline("shop", gate=GATE, interval="never").feed()
    judge_by(made, 100)
    with made as started:
        started.known("shop")
        assert started.trigger("shop").ended() == "success"
        yield started


@pytest.fixture(scope="module")
def shop(airflow: AirflowWithRoles) -> Made:
    return Made(airflow.project, "shop")


@pytest.fixture(scope="module")
def page(airflow: AirflowWithRoles) -> Iterator[Page]:
    with Browser() as browser:
        opened = airflow.page(browser, "user")
        opened.goto(f"http://127.0.0.1:{airflow.port}/dags/shop/plugin/checkpoints")
        opened.here = FRAME
        opened.has("shop", "main")
        yield opened


def at(page: Page, where: str) -> None:
    page.run(f"document.querySelector('iframe').contentWindow.location.hash = '#/{where}'")


SIDES = [("dark", 420)]
if "SCREENSHOTS" in os.environ:
    SIDES += [("light", 420), ("light", 1400), ("dark", 1400)]


@pytest.mark.parametrize(("theme", "width"), SIDES)
def test_the_dialog_fits_a_phone_too(airflow: AirflowWithRoles, theme: str, width: int) -> None:
    with Browser() as browser:
        page = airflow.page(browser, "user", width, 1000)
        page.call("Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.setItem('theme', '{theme}')")
        page.goto(f"http://127.0.0.1:{airflow.port}/tidegate/dag/shop#/quarantine")
        page.has("4 rows here", "main")
        shot(page, f"{theme}-{width}-quarantine")
        page.click("#act-release-rows")
        page.type("#field-column", "id")
        page.type("#field-value", SQL)
        page.click("#field-sql")
        page.has("Changed: 3 rows.", "dialog", timeout=180)
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run("document.querySelector('dialog').scrollWidth") <= width
        page.run("document.querySelector('dialog').scrollTo(0, 10000)")
        shot(page, f"{theme}-{width}-correction")


def shot(page: Page, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(Path(folder, f"{name}.png"))


def sent(page: Page) -> None:
    page.click("#dialog-send")
    eventually("the dialog is gone", lambda: not page.there("dialog"))


def test_a_dialog_shows_what_sql_makes_of_the_rows_and_releases_them(
    page: Page, airflow: AirflowWithRoles, shop: Made
) -> None:
    at(page, "quarantine")
    page.has("4 rows here", "main")
    page.click("#act-release-rows")
    page.type("#field-column", "id")
    page.type("#field-value", SQL)
    page.click("#field-sql")
    page.has("Changed: 3 rows.", "dialog", timeout=180)
    page.has("1 row stays in quarantine: id cannot be corrected", "dialog")
    page.has("id becomes", "dialog")
    assert "file" not in page.text("dialog table"), "a private column is not shown"
    assert "Spark says" not in page.text("dialog"), "its errors may quote private values"
    sent(page)
    (request,) = shop.ledger.requests("checked")
    assert (request.by, request.correct_sql) == ("user in Airflow", {"id": SQL})
    assert airflow.trigger("shop").ended() == "success"
    assert sorted(id for id, _ in shop.rows("every")) == [137, 153, 202]
    at(page, "quarantine")
    page.has("id cannot be corrected", "tbody")


def test_sql_that_is_refused_says_why_in_the_dialog(page: Page, shop: Made) -> None:
    at(page, "quarantine")
    page.click("#act-release-rows")
    page.type("#field-column", "id")
    page.type("#field-value", "max(id)")
    page.click("#field-sql")
    page.has("which is about several rows", "dialog")
    page.click("#dialog-cancel")
    eventually("the dialog is gone", lambda: not page.there("dialog"))  # until then the page opens no other
    assert len(shop.ledger.requests("checked")) == 1


def test_rows_are_judged_again_on_the_page(page: Page, airflow: AirflowWithRoles, shop: Made) -> None:
    judge_by(airflow, 1)
    at(page, "quarantine")
    page.click("#act-rejudge-rows")
    page.has("By today's suite, 1 row passes", "dialog")
    page.has("large: 1 before, 0 now.", "dialog")
    sent(page)
    assert airflow.trigger("shop").ended() == "success"
    assert 1 in [id for id, _ in shop.rows("every")]


def test_who_corrected_a_row_and_how_is_in_the_api(airflow: AirflowWithRoles, get: Any) -> None:
    rows = get("checkpoints/1/quarantined/checked?limit=50")["rows"]
    settled = {row["values"]["id"]: row["settled"] for row in rows}
    assert settled["2"]["sql"] == {"id": SQL}
    assert (settled["2"]["corrected"], settled["2"]["settled_by"]) == ({"id": "202"}, "user in Airflow")
    assert settled["1"]["corrected"] == {}


@pytest.fixture
def get(airflow: AirflowWithRoles) -> Any:
    def ask(path: str) -> Any:
        url = f"http://127.0.0.1:{airflow.port}/tidegate/api/v1/dags/shop/{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {airflow.token('user')}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    return ask


def test_who_may_not_read_rows_corrects_none_by_sql(airflow: AirflowWithRoles) -> None:
    body = {"gate": "checked", "correct_sql": {"id": "id + 1"}, "preview": True}
    url = f"http://127.0.0.1:{airflow.port}/tidegate/api/v1/dags/shop/actions/release"
    headers = {"Authorization": f"Bearer {airflow.token('viewer')}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=60)
