"""Airflow's own dialogs, in a browser."""

from __future__ import annotations

import json
from datetime import datetime

from tests.dags.server import Airflow
from tests.kit.waiting import eventually
from tests.ui.browser import Page


def press(page: Page, text: str) -> None:
    """A button of Airflow's own."""
    button = f"[...document.querySelectorAll('button')].find((each) => each.innerText.trim() === {json.dumps(text)})"
    eventually(f"there is {text}", lambda: page.look(f"!!{button} && !{button}.disabled"))
    page.run(f"{button}.click()")


def fill_backfill(page: Page, first: datetime, last: datetime) -> None:
    """All runs of a range of dates, by Trigger → Backfill."""
    press(page, "Trigger")
    page.click("[role=dialog] input[value=backfill]")
    fields = "[data-scope=popover][data-part=content][data-state=open] input"
    for number, moment in enumerate((first, last)):
        eventually("there are dates", lambda: page.there("[data-testid=datetime-input]"))
        page.run(f"document.querySelectorAll('[data-testid=datetime-input]')[{number}].click()")
        for place, text in enumerate((f"{moment:%Y/%m/%d}", f"{moment:%H:%M}")):
            eventually(
                "it opens", lambda place=place: page.look(f"document.querySelectorAll('{fields}').length") > place
            )
            # React hears only of what its own setter has not seen.
            page.run(
                f"(() => {{ const it = document.querySelectorAll('{fields}')[{place}]; it.focus();"
                " Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value')"
                f".set.call(it, {json.dumps(text)});"
                " for (const name of ['input', 'change', 'focusout'])"
                " it.dispatchEvent(new Event(name, {bubbles: true})); })()"
            )
        page.key("Escape")
        eventually("it is closed", lambda: not page.there(fields))
        shown = f"{moment:%b %d, %Y %H:%M}"
        eventually("the date is taken", lambda shown=shown: shown in page.text("[role=dialog]:has([value=backfill])"))
    page.click("[role=dialog] input[value=completed]")
    eventually(
        "Airflow knows the runs", lambda: "will be triggered" in page.text("[role=dialog]:has([value=backfill])")
    )


def run_backfill(page: Page, airflow: Airflow) -> None:
    """Send the dialog, and let nobody else write until Airflow has answered, which closes it.

    Airflow commits the backfill before it makes its runs: that there is one does not mean that it is done.
    """
    with airflow.still():
        press(page, "Run Backfill")
        eventually("Airflow has made the runs", lambda: not page.there("[role=dialog]:has([value=backfill])"))
