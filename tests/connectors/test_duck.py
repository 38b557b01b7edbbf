"""The third connector passes both contracts, without a line of its own about crashes."""

from __future__ import annotations

import pytest

from tests.connectors.duck_contracts import DuckRowsContract, DuckTableContract
from tests.kit.sampling import ALL, in_turn
from tidegate.connectors.sink import Staging
from tidegate.errors import Invalid

pytestmark = in_turn(seconds=145)


class TestDuckRows(DuckRowsContract):
    pass


class TestDuckTable(DuckTableContract):
    pass


class TestDuckTableWithKeys(DuckTableContract):
    keys = ("k",)

    def test_a_process_that_dies_at_any_step_of_a_checkpoint_loses_and_doubles_nothing(self) -> None:
        if not ALL:
            pytest.skip("as without keys: ALL=1")
        super().test_a_process_that_dies_at_any_step_of_a_checkpoint_loses_and_doubles_nothing()

    def test_a_key_that_is_not_in_the_output_is_refused(self) -> None:
        with pytest.raises(Invalid, match="there is no column 'k'"):
            self.sink().prepare(self.frame(1).drop("k"), self.context, Staging(1, "a"))
