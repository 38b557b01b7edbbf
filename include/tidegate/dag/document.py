"""What the DAG says of itself in Airflow: what the pipeline is, its picture, its settings, what to do when it is red.

Airflow shows Markdown, but neither images nor mermaid: the picture is text.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.config import Settings
from tidegate.pipeline.gated import Gated
from tidegate.pipeline.graph import Graph, Job, Node, Sinking

__all__ = ["COMPLETE", "TRIGGER", "dag_text", "description", "gate_text", "job_text", "picture"]

TRIGGER = """Plans this run's checkpoint. Ends checkpoints that are dead, publishes what is owed, asks the sources what
is new, and writes down which input belongs to this run. It waits, deferred, while others are at work.

**Clear it** at any time: a run that has a checkpoint keeps it; one whose checkpoint was aborted gets a new one."""

COMPLETE = """Decides this run's checkpoint once all jobs have ended: **completed**, and every sink shows it, or
**aborted**, and the run is red. Nothing that was aborted is ever visible, and its input is in the next checkpoint.

*Skipped* means that there was nothing to do: no checkpoint was wanted, or it was completed before."""

RED = """## When a run is red

1. Open the log of the task that failed first. Its last lines say what happened, what was expected and what to do;
   `tidegate list` and `tidegate explain` tell it in prose.
2. Nothing is half done. The checkpoint was aborted: its rows are in no table, and the next run takes its input again.
3. Correct the cause. Then wait for the next run, or clear this one: both are safe, as is clearing any task or any
   older run.
4. If more checkpoints in a row fail than `tolerable_failed_checkpoints` (below) allows, the pipeline is suspended: runs
   are skipped, green, and make nothing, until somebody says `tidegate resume NAME`. The log of `complete` says so.
5. If rows were published that should never have been: `tidegate rollback MODULE:PIPELINE --to N --suspend` puts
   positions, state and tables back to checkpoint N; correct the code, then resume: their input is read again.

A run that is *green* with skipped tasks made no checkpoint, or found it completed before; the task's log says which.
A run *marked* green or red by hand changes nothing: the next run ends its checkpoint if it is still open."""


def description(graph: Graph) -> str:
    """One line for the list of DAGs."""
    return f"Checkpoints of pipeline {graph.name}: {', '.join(graph.sources)} → {', '.join(graph.sinks)}"


def dag_text(graph: Graph, settings: Settings) -> str:
    """The DAG's documentation."""
    rows = "\n".join(f"| `{s.key}` | {_cell(s.value)} | {_cell(s.origin)} |" for s in settings.shown())
    return "\n\n".join(
        [
            f"# Pipeline {graph.name}",
            "Every run is one **checkpoint**: it takes new input through the whole pipeline, and then either all of it "
            "counts, in all sinks, or none of it.",
            f"```\n{picture(graph)}\n```",
            RED,
            f"## Settings\n\n| key | value | from |\n| --- | --- | --- |\n{rows}",
        ]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ") or "–"


def job_text(job: Job) -> str:
    """A job task's documentation."""
    parts = [
        ("Reads", [s.name for s in job.sources]),
        ("Takes from other jobs", list(job.takes)),
        ("Runs", [s.name for s in job.stages]),
        ("Stages rows for", [s.name for s in job.sinks]),
        ("Sends to other jobs", list(job.gives)),
    ]
    told = "\n".join(f"- {what}: {', '.join(f'`{name}`' for name in names)}" for what, names in parts if names)
    return (
        f"Runs one job of the checkpoint on Spark.\n\n{told}\n\nWhat it stages is out of sight until `complete` has "
        "decided. It can be retried, cleared, killed or run twice at once: its first acknowledgement counts, whole."
    )


def gate_text(gated: Gated) -> str:
    """A gate task's documentation."""
    rows = "\n".join(f"| `{key}` | {_cell(str(value))} |" for key, value in gated.gate.describe().items())
    return (
        f"Shows what gate `{gated.name}` ({gated.gate.kind}) found in the rows of `{gated.input}`: which rules broke, "
        "how many rows, what follows. The job has judged them; this task only tells.\n\n| | |\n| --- | --- |\n"
        f"{rows}\n\n**Red**: a rule says abort, or a person said no. **Deferred**: it waits for a person, under "
        "*Required Actions* or `tidegate approve|reject`. **Skipped**: there is no verdict."
    )


def picture(graph: Graph) -> str:
    """The graph as a tree of text: each operator under the first one that it reads."""
    lines: list[tuple[str, str]] = []
    drawn: set[str] = set()
    for name, sourcing in graph.sources.items():
        lines.append((name, f"source · {sourcing.source.kind}"))
        lines += _below(graph, (name,), "", drawn)
    width = max(len(left) for left, _ in lines)
    return "\n".join(f"{left:<{width}}   {right}" for left, right in lines)


def _below(graph: Graph, streams: tuple[str, ...], indent: str, drawn: set[str]) -> Iterator[tuple[str, str]]:
    """Everything that reads one of these streams."""
    users: list[Node | Sinking] = [s for s in graph.stages if set(s.inputs).intersection(streams)]
    users += [s for s in graph.sinks.values() if s.input in streams]
    for number, user in enumerate(users, 1):
        last = number == len(users)
        corner, bar = ("└─▶ ", "    ") if last else ("├─▶ ", "│   ")
        if isinstance(user, Sinking):
            of = "" if len(streams) == 1 else f", takes {user.input}"
            yield f"{indent}{corner}{user.name}", f"sink · {user.sink.kind}{of}{_moved(graph, user, streams)}"
        elif user.name in drawn:
            yield f"{indent}{corner}{user.name}", "stage (above)"
        else:
            drawn.add(user.name)
            kind = f"gate · {user.gate.kind}" if isinstance(user, Gated) else "stage"
            reads = f", reads {', '.join(user.inputs)}" if len(user.inputs) > 1 else ""
            yield f"{indent}{corner}{user.name}", f"{kind}{reads}{_moved(graph, user, streams)}"
            yield from _below(graph, user.produces, indent + bar, drawn)


def _moved(graph: Graph, user: Node | Sinking, streams: tuple[str, ...]) -> str:
    """In which job it is, if that is not the job of what it reads here."""
    for job in graph.jobs:
        if user in job.stages or user in job.sinks:
            return f", in job {job.name}" if not set(job.takes).isdisjoint(streams) else ""
    return ""
