"""Streams that are looked up: those of operators which give all that they hold in each checkpoint.

They are no rows on their way: a sink would write all of them again and again. A stage that has rows beside them may
take them, in the job in which they are held: only what changes them goes from job to job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.pipeline.nodes import Node, Operated, Sinking, Staged

__all__ = ["lookup_problems", "lookups"]


def lookups(stages: Sequence[Node]) -> frozenset[str]:
    """Their names."""
    return frozenset(stage.name for stage in stages if isinstance(stage, Operated) and stage.operator.gives_all)


def lookup_problems(
    stages: Sequence[Node], sinks: Sequence[Sinking], jobs: Mapping[str, str], updating: frozenset[str]
) -> list[str]:
    """Who takes one must know what it is. jobs: in which each stage is. updating: streams that replace rows."""
    found, problems = lookups(stages), []
    for stage in stages:
        looked_up = [name for name in stage.inputs if name in found]
        if not looked_up:
            continue
        what = f"{stage.name!r} takes {', '.join(looked_up)}"
        beside = [name for name in stage.inputs if name not in found]
        if not isinstance(stage, Staged):
            problems.append(f"{what}, all of it in each checkpoint: look it up in a stage, and go on behind that")
        elif not beside:
            problems.append(f"stage {what} and nothing else: name the rows that it is looked up for, too")
        elif replacing := [name for name in beside if name in updating]:
            problems.append(
                f"stage {what} beside {', '.join(replacing)}, whose replaced rows would be looked up in what holds now,"
                " not in what held then: put it in front of what replaces rows"
            )
        problems += [
            f"stage {what} of job {jobs[name]!r} in job {jobs[stage.name]!r}: "
            f"say .job({jobs[stage.name]!r}) in front of .broadcast(…), so that only changes go there"
            for name in looked_up
            if jobs[name] != jobs[stage.name]
        ]
    problems += [
        f"sink {sink.name!r} takes {sink.input}, all of it in each checkpoint: "
        "let it take .latest(…) of the same rows, which gives what has changed"
        for sink in sinks
        if sink.input in found
    ]
    return problems
