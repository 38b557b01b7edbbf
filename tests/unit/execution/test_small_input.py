"""Plans of small jobs do not adapt: where that pays, and only for as long as the job works."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidegate.execution.job.small_input import SMALL_BYTES, is_small, planned_simply
from tidegate.records.place import LOCAL_WRITES
from tidegate.records.records import Amount

ADAPTIVE = "spark.sql.adaptive.enabled"


class Session:
    """The settings of one: a real one takes a JVM. Without arguments, of a small Spark that tidegate has started."""

    def __init__(self, **other: str) -> None:
        ours = {"spark.master": "local[2]", LOCAL_WRITES: "true", "spark.sql.shuffle.partitions": "2", ADAPTIVE: "true"}
        self.settings = ours | other
        self.conf = self

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.settings.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value


def inside(session: Session) -> str:
    with planned_simply(cast(Any, session)):
        return session.settings[ADAPTIVE]


def test_plans_adapt_again_afterwards_also_if_the_job_fails() -> None:
    session = Session()
    assert inside(session) == "false"
    assert session.settings[ADAPTIVE] == "true"
    with pytest.raises(ZeroDivisionError), planned_simply(cast(Any, session)):
        raise ZeroDivisionError
    assert session.settings[ADAPTIVE] == "true"


@pytest.mark.parametrize(
    ("elsewhere", "stays"),
    [
        ({"spark.master": "spark://host:7077"}, "true"),
        ({LOCAL_WRITES: ""}, "true"),
        ({"spark.sql.shuffle.partitions": "200"}, "true"),
        ({ADAPTIVE: "false"}, "false"),
    ],
    ids=["a cluster", "a Spark of the user's own", "many partitions", "they never adapt"],
)
def test_elsewhere_nothing_is_changed(elsewhere: dict[str, str], stays: str) -> None:
    session = Session(**elsewhere)
    assert inside(session) == stays
    assert session.settings[ADAPTIVE] == stays


@pytest.mark.parametrize(
    ("sizes", "small"),
    [
        ([], False),
        ([None], False),
        ([1, None], False),
        ([0], True),
        ([SMALL_BYTES, 0], True),
        ([SMALL_BYTES, 1], False),
    ],
)
def test_small_is_what_is_known_to_be(sizes: list[int | None], small: bool) -> None:
    assert is_small(Amount(bytes=size) for size in sizes) is small
