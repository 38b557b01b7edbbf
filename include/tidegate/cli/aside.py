"""A gate's quarantine, as the command line is told of it."""

from __future__ import annotations

from tidegate.cli.targets import Target
from tidegate.errors import Rejected
from tidegate.gates.aside import Aside, open_quarantine

__all__ = ["gates_of", "open_aside"]


def gates_of(target: Target) -> list[str]:
    """The gates that have set rows aside."""
    return [name for name in target.ledger.store.names("quarantine") if _open(target, name) is not None]


def open_aside(target: Target, gate: str) -> Aside:
    """A gate's quarantine; Rejected if it has none."""
    aside = _open(target, gate)
    if aside is None:
        raise Rejected(
            f"gate {gate!r} of pipeline {target.name!r} has set no rows aside",
            expected=" or ".join(gates_of(target))
            or "a gate whose policy is quarantine, and rows that break its rules",
            help=f"`tidegate quarantine list {target.argument}` shows all",
            reason="NO_QUARANTINE",
        )
    return aside


def _open(target: Target, gate: str) -> Aside | None:
    if "/" in gate or gate.startswith("."):
        return None
    return open_quarantine(target.ledger.home, gate, target.settings.storage_options)
