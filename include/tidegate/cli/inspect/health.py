"""Prints a pipeline's health: its state, the cause, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.cli.output import Output
from tidegate.cli.targets import Target
from tidegate.execution.runs import abandoned_reason
from tidegate.history.health import Health, condition, observe
from tidegate.history.promises import PromiseStatus, age_text

__all__ = ["health_document", "health_of", "print_health", "print_promises"]


def health_of(target: Target) -> tuple[Health, tuple[PromiseStatus, ...]]:
    """Return the pipeline's health as of now, and how its promises are kept."""
    observed = observe(target.ledger, target.settings, abandoned_reason)
    return condition(observed, target.command), observed.promises


def health_document(health: Health) -> dict[str, Any]:
    """Return the document for scripts: `state` and `reason` are stable, the texts are not."""
    return {
        "state": health.state,
        "summary": health.summary,
        "cause": health.cause,
        "remedy": list(health.remedy),
        "reason": health.reason,
    }


def print_health(health: Health, out: Output) -> None:
    """Print the state, the cause, and what to do, in that order."""
    out.line(health.summary, "bold" if health.needs_nothing else "bold red")
    if health.cause:
        out.line(f"  Cause:  {health.cause}")
    for number, step in enumerate(health.remedy, 1):
        out.line(f"  {'Do:' if number == 1 else '':<6}  {f'{number}. ' if len(health.remedy) > 1 else ''}{step}")


def print_promises(promises: Iterable[PromiseStatus], out: Output) -> None:
    """Print whether each promise is kept."""
    for promise in promises:
        if promise.is_kept:
            verdict = "kept"
        else:
            verdict = f"broken, by {age_text(promise.lateness_s)}"
        out.line(f"  Promise {verdict}: {promise.text}", "" if promise.is_kept else "bold red")
