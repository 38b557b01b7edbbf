"""`make world` in short: lives of connectors that need no server, in turn with some that do, and planted defects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.postgres import MISSING, programs
from tests.kit.sampling import turn_of
from tests.world.life import CHEAP, live
from tests.world.other_side import Servers
from tests.world.planted_defects import PLANTED

BY_TURNS = ("postgres-table", "postgres-changes", "postgres-append", "postgres-upsert")


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as running:
        yield running


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", [*turn_of(CHEAP, 6), *turn_of(BY_TURNS, 12)])
def test_whatever_befalls_the_other_side_rows_are_right_or_the_cause_is_named(
    servers: Servers, tmp_path: Path, kind: str
) -> None:
    if kind in BY_TURNS and programs() is None:
        pytest.skip(MISSING)
    lived = live(1, tmp_path / "life", servers, steps=3, kinds=[kind])
    assert lived.wrong == [], "\n".join(lived.wrong)
    assert lived.acts.total() > 0


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("number", turn_of(list(PLANTED), 6))
def test_a_defect_that_is_planted_again_is_found(servers: Servers, tmp_path: Path, number: str) -> None:
    planted = PLANTED[number]
    if planted.kind in BY_TURNS and programs() is None:
        pytest.skip(MISSING)
    lived = planted.live(tmp_path / "life", servers)
    assert any(planted.found in each for each in lived.wrong), lived.wrong
