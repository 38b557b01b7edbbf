"""The model would have noticed: each rule that is broken on purpose leads to damage, with a short story."""

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.model.divert_mutations import DIVERT_MUTATIONS
from tests.model.explore import explore
from tests.model.line_mutations import LINE_MUTATIONS
from tests.model.mutations import MUTATIONS, Mutation

pytestmark = pytest.mark.slow  # explores a world per mutation

ALL = [*MUTATIONS, *LINE_MUTATIONS, *DIVERT_MUTATIONS]


@in_turn(seconds=50)
@pytest.mark.parametrize("mutation", turn_of(ALL, 6), ids=lambda mutation: mutation.name)
def test_a_broken_rule_is_caught(mutation: Mutation) -> None:
    result = explore(mutation.broken_world())
    print(f"{mutation.name}: {result}")
    assert result.problem is not None, f"{result}: {mutation.name} goes unnoticed"
    assert mutation.shows in result.problem, result
    assert 0 < len(result.trace) <= 60
