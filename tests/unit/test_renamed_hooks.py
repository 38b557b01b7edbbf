"""A source, sink, gate or operator that somebody wrote for version 0.2 is not imported with hooks that nobody calls."""

from pathlib import Path

import pytest

from tidegate import renamed_hooks
from tidegate.connectors.sink import ExactlyOnceSink, Sink
from tidegate.connectors.source import Source
from tidegate.connectors.transactional import TransactionalSink
from tidegate.errors import Invalid
from tidegate.gates.base import Gate
from tidegate.operators.base import Operator

CONTRACTS = [
    (Source, renamed_hooks.SOURCE_HOOKS),
    (Sink, renamed_hooks.SINK_HOOKS),
    (TransactionalSink, renamed_hooks.TRANSACTIONAL_SINK_HOOKS),
    (Gate, renamed_hooks.GATE_HOOKS),
    (Operator, renamed_hooks.OPERATOR_HOOKS),
]


@pytest.mark.parametrize(
    ("contract", "old", "new"), [(c, old, new) for c, hooks in CONTRACTS for old, new in hooks.items()]
)
def test_a_class_with_an_old_hook_is_refused_with_its_new_name(contract: type, old: str, new: str):
    assert hasattr(contract, new), "what the error advises exists"
    with pytest.raises(Invalid, match=f"Mine defines hooks .* {old} is {new} now") as refused:
        type("Mine", (contract,), {old: lambda self: None})
    assert refused.value.reason == "HOOK_RENAMED"


def test_a_sink_of_version_0_2_is_told_all_its_old_hooks_at_once():
    with pytest.raises(Invalid, match="way_back is restore_plan now, go_back is restore now"):

        class Warehouse(ExactlyOnceSink):
            kind = "warehouse"

            def way_back(self) -> None: ...

            def go_back(self) -> None: ...


def test_a_gate_of_version_0_2_that_fixes_its_tables_is_told_so():
    with pytest.raises(Invalid, match="pin is fix_inputs now, pins_tables is reads_tables now, keeps is persists now"):

        class Known(Gate):
            kind = "known"
            keeps = True
            pins_tables = True

            def pin(self, context: object) -> None: ...


def test_the_page_for_upgrading_names_each_of_them():
    page = (Path(__file__).parents[2] / "docs/upgrading-to-0.3.md").read_text(encoding="utf-8")
    of_connectors = [hooks for contract, hooks in CONTRACTS if contract is not Operator]
    missing = [old for hooks in of_connectors for old, new in hooks.items() if f"| `{old}` | `{new}` |" not in page]
    assert missing == []
