"""Bugs in how intervals are made and published, planted into the real code. The simulation must find each.

That a lower checkpoint never comes behind a higher one of its interval is for the model (tests/model/mutations.py):
here triggers publish what is owed before they plan, so both are hardly ever owed at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests.kit.toys import ToyCommit, ToySink
from tests.simulation.planted_bugs import Plant
from tidegate.checkpoint.publishing import intervals as publish_intervals
from tidegate.checkpoint.publishing import publish
from tidegate.ledger.ledger import Ledger
from tidegate.protocol import rules

Patches = Iterator[Any]


def _no_index() -> Patches:
    yield mock.patch.object(Ledger, "index_interval", lambda self, filled: None)


def _hint_before_the_index() -> Patches:
    """Whoever dies in between leaves an interval that nobody knows."""
    real, index = publish._write_hints, publish_intervals.index_interval

    def defer(coordinator: Any, entry: Any) -> None:
        coordinator.__dict__.setdefault("deferred", []).append(entry)

    def tell(coordinator: Any, report: Any) -> None:
        real(coordinator, report)
        for entry in coordinator.__dict__.pop("deferred", []):
            index(coordinator, entry)

    yield mock.patch.object(publish_intervals, "index_interval", defer)
    yield mock.patch.object(publish, "_write_hints", tell)


def _make_one_interval_twice_at_once() -> Patches:
    real = rules._conflict

    def beside(view: Any, wanted: Any) -> Any:
        answer = real(view, wanted)
        return None if isinstance(answer, rules.Wait) else answer

    yield mock.patch.object(rules, "_conflict", beside)


def _leave_what_was_there() -> Patches:
    yield mock.patch.object(ToySink, "_replaced", lambda self, publication, head: ())


def _believe_the_last_id_alone() -> Patches:
    """Take an id for published because a higher one of another interval is."""

    def holds(self: ToySink, publication: Any, head: Any, context: Any) -> bool:
        return head.last is not None and head.last >= publication.id

    yield mock.patch.object(ToySink, "has_publication", holds)


def _let_the_transaction_go_back() -> Patches:
    real = ToyCommit.__init__

    def init(self: ToyCommit, *args: Any, **named: Any) -> None:
        real(self, *args[:6], **named)  # without the floor

    yield mock.patch.object(ToyCommit, "__init__", init)


PLANTED_HOURS = {
    "no index": Plant(_no_index, 100),
    "hint before the index": Plant(_hint_before_the_index, 400, (76,)),
    "make one interval twice at once": Plant(_make_one_interval_twice_at_once, 100, (65, 86)),
    "leave what was there": Plant(_leave_what_was_there, 100, (4,)),
    "believe the last id alone": Plant(_believe_the_last_id_alone, 200, (75,)),
    "let the transaction go back": Plant(_let_the_transaction_go_back, 800, (22,)),
}
