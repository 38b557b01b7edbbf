"""Gates that look at what an operator remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.pipeline.gated import Gated
from tidegate.pipeline.nodes import Node, Operated

__all__ = ["against_problems"]


def against_problems(ordered: Sequence[Node], jobs: Mapping[str, str]) -> list[str]:
    """What is wrong with the operators that gates are against. jobs: in which one each stage is."""
    operators = {stage.name: stage for stage in ordered if isinstance(stage, Operated)}
    found = []
    for gated in ordered:
        uid = getattr(gated.gate, "against", None) if isinstance(gated, Gated) else None
        if not isinstance(uid, str) or not isinstance(gated, Gated):
            continue
        what = f"gate {gated.name!r} is against {uid!r}"
        if uid not in operators:
            known = ", ".join(sorted(operators)) or "there is none"
            found.append(f"{what}, which is no operator: expected the uid of one ({known})")
            continue
        by, asked = operators[uid].operator.known_by, list(getattr(gated.gate, "by", []))
        if by is None:
            found.append(f"{what}, which forgets keys: expected a deduplicate, latest or aggregate without end")
        elif sorted(by) != sorted(asked):
            found.append(f"{what}, which knows {', '.join(by)}, and not {', '.join(asked)}: judge by the same columns")
        elif jobs[uid] != jobs[gated.name]:
            found.append(
                f"{what} of job {jobs[uid]!r}, and is in {jobs[gated.name]!r}: what is remembered there is only known "
                "there: put both into one, with .job(…)"
            )
    return found
