"""Hooks of sources, sinks, gates and operators that had other names in version 0.2.

A class of a user that still defines one would be imported without a word, and its hook never be called.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.errors import Invalid

__all__ = ["GATE_HOOKS", "OPERATOR_HOOKS", "SINK_HOOKS", "SOURCE_HOOKS", "TRANSACTIONAL_SINK_HOOKS", "refuse_old_hooks"]

SOURCE_HOOKS = {
    "gone": "missing_input",
    "highest": "max_event_time",
    "completed": "on_checkpoint_completed",
}

SINK_HOOKS = {
    "gone": "missing_files",
    "way_back": "restore_plan",
    "go_back": "restore",
    "bring": "promote_shadow",
    "adds_each": "counts_input_rows",
    "takes_replaced": "wants_retractions",
    "writes_through": "can_publish_directly",
    "ahead": "prestage",
    "prepare_ahead": "prepare_prestaged",
    "prepare_updates": "prepare_with_retractions",
    "holds": "has_publication",
    "skipped": "has_skipped",
    "forget": "delete_history",
    "try_out": "test_store",
    "seed": "create_shadow",
    "why_rows_stay": "rows_stay_reason",
    "stages_in": "staging_folder",
}

TRANSACTIONAL_SINK_HOOKS = {"take_back": "undo_after"}

GATE_HOOKS = {
    "told_by": "identity_parts",
    "by_cuts": "depends_on_checkpoint_cuts",
    "fix_again": "fix_inputs_again",
    "warm": "warm_up",
    "pin": "fix_inputs",
    "pins_tables": "reads_tables",
    "keeps": "persists",
}


OPERATOR_HOOKS = {
    "shown": "current_output",
    # All declarations of an operator have moved into its spec.
    "event_time_problems": "spec",
    "gives_all": "spec",
    "goes_by": "spec",
    "known_by": "spec",
    "lag_s": "spec",
    "pin": "spec",
    "renews": "spec",
    "replacing": "spec",
    "takes_updates": "spec",
    "told_by": "spec",
    "untimely": "spec",
    "update_problems": "spec",
    "updates": "spec",
    "uses_event_time": "spec",
}


def refuse_old_hooks(cls: type, new_names: Mapping[str, str]) -> None:
    """Raise Invalid if the class defines a hook by its old name."""
    old = [name for name in new_names if name in vars(cls)]
    if not old:
        return
    renamed = ", ".join(f"{name} is {new_names[name]} now" for name in old)
    raise Invalid(
        f"{cls.__module__}.{cls.__qualname__} defines hooks that have had other names since tidegate 0.3: {renamed}. "
        "tidegate would never call them",
        expected="hooks by their present names",
        help="rename them; docs/guides/writing-a-source-or-sink.md has all of them, tidegate/operators/spec.py what an "
        "operator says",
        reason="HOOK_RENAMED",
    )
