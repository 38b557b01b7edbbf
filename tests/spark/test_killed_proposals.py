"""`tidegate propose` is killed, as a process of its own: nothing of production has changed, and one command removes the
rest. `make proposals` is the long form."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.kit.sampling import ALL, in_turn
from tests.spark.killed_proposals import FURTHEST, Sales, kill_proposals, propose

pytestmark = in_turn(seconds=90)

STEPS = (1, 2, 3, 5, 8, 13, 21, 30, 40, 50, 60, 70, FURTHEST) if ALL else (2, 13, 40, FURTHEST)
"""How many fault points the process passes until it is killed."""


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sales]:
    made = Sales(tmp_path_factory.mktemp("killed") / "project")
    with made.entered():
        for day in ((1.0, 2.0), (3.0,), (4.0, 5.0)):
            made.sell(*day)
        yield made


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_proposal_leaves_production_as_it_was_and_is_removed_by_its_name(sales: Sales, step: int) -> None:
    before = sales.production()
    code, said = propose(sales.folder, step, "branch")
    assert sales.production() == before
    assert code == -signal.SIGKILL, said
    sales.discard_proposals()
    assert sales.production() == before


def test_beside_what_was_killed_one_comes_to_its_report(sales: Sales) -> None:
    propose(sales.folder, 30, "branch")
    (left,) = sales.ledger.proposals()
    code, said = propose(sales.folder, 1_000_000, "branch")
    assert code == 1, "its state does not fit: a merge is refused, and everything is replayed"
    assert f"Proposal {left.name} of" in said
    assert "rows of `totals`" in said
    passed = int(said.split("passed")[1].split()[0])
    assert passed > max(STEPS), f"it passes {passed} points: kill it earlier"
    sales.discard_proposals()


def test_production_makes_its_checkpoints_beside_proposals_that_are_killed(sales: Sales) -> None:
    kill_proposals(sales, 4, 3, print)
