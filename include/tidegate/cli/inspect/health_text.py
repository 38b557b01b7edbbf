"""How a pipeline is, as commands tell it: its state, the cause, what to do."""

from __future__ import annotations

from typing import Any

from tidegate.cli.output import Output
from tidegate.cli.targets import Target
from tidegate.execution.runs import abandoned_reason
from tidegate.history.health import Health, condition, look

__all__ = ["standing", "standing_document", "tell_standing"]


def standing(target: Target) -> Health:
    """Look at the pipeline once."""
    return condition(look(target.ledger, target.settings, abandoned_reason), target.command)


def standing_document(found: Health) -> dict[str, Any]:
    """For scripts: `state` and `reason` are stable, the texts are not."""
    return {
        "state": found.state,
        "said": found.said,
        "cause": found.cause,
        "remedy": list(found.remedy),
        "reason": found.reason,
    }


def tell_standing(found: Health, out: Output) -> None:
    """For people: state, cause, and what to do in its order."""
    out.line(found.said, "bold" if found.good else "bold red")
    if found.cause:
        out.line(f"  Cause:  {found.cause}")
    for number, step in enumerate(found.remedy, 1):
        out.line(f"  {'Do:' if number == 1 else '':<6}  {f'{number}. ' if len(found.remedy) > 1 else ''}{step}")
