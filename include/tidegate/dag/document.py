"""The documentation of the DAG in Airflow: the pipeline, its picture, its settings, and what to do when a run fails.

Airflow renders Markdown, but neither images nor mermaid, so the picture is text.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.config import Settings
from tidegate.pipeline.graph.graph import Graph, Job
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.pipeline.picture import picture
from tidegate.records.masking import without_logins

__all__ = [
    "CHECK",
    "COMPARE",
    "COMPLETE",
    "DISCARD",
    "REPLAY",
    "SWAP",
    "TRIGGER",
    "WHY",
    "backfill_text",
    "dag_text",
    "description",
    "gate_text",
    "job_text",
]

TRIGGER = """Plans this run's checkpoint: aborts dead checkpoints, publishes pending ones, asks the sources for new
input, and records which input this run takes. It waits, deferred, while other runs are in progress.

**Clear it** at any time: a run that has a checkpoint keeps it; if that was aborted, the run gets a new one."""

COMPLETE = """Decides this run's checkpoint once all jobs have ended: either it is **completed**, and every sink shows
it, or **aborted**, and the run fails. Nothing of an aborted checkpoint is ever visible, and its input is in the next
one.

*Skipped* means that it had nothing to do: the run makes no checkpoint, or it was completed before."""

CHECK = """Reports what the backfill would read again and change, and which input is gone. Refuses an impossible
backfill. It writes nothing. Its result is also its XCom."""

REPLAY = """Reads the same input again with today's code, into hidden tables, while the pipeline runs. Ends when it has
caught up with the pipeline.

**Clear it**, let it fail, or kill it at any time: it continues where it stopped."""

COMPARE = """Counts the rows that a swap would remove and add, per table: in its log, its XCom, and on the pipeline's
page *Checkpoints*. With the field `diff`, some of the rows are in the XCom `rows`."""

SWAP = """Skipped unless a user who may edit the pipeline requested the swap: button *Swap in* on its page
*Checkpoints*. The pipeline waits while the rest is read; then each table changes in one commit."""

DISCARD = """Skipped unless a user requested to discard the backfill: button *Discard* on the pipeline's page
*Checkpoints*."""

WHY = """Skipped unless a user asked on a page why a table has a row: button *Why?* beside the row. It replays recorded
checkpoints, at the lowest priority, in a folder that it removes. The answer is on that page."""

AT_ONCE = """**At least once** (`mode`): jobs write rows to their tables as soon as they have them. So the text below
holds only for positions and state, not for rows in tables: the rows of an aborted checkpoint stay, and the next
checkpoint writes them again."""

RED = """## When a run is red

1. Open the log of the task that failed first. Its last lines say what happened, what was expected and what to do.
   `tidegate list` and `tidegate explain` say it in prose.
2. Nothing is half done. The checkpoint was aborted: its rows are in no table, and the next run reads its input again.
3. Correct the cause. Then wait for the next run, or clear this one: both are safe, as is clearing any task or any
   older run.
4. If more checkpoints in a row fail than `tolerable_failed_checkpoints` (below) allows, the pipeline is suspended: runs
   are skipped, green, and do nothing until you run `tidegate resume NAME`. The log of `complete` says so.
5. If bad rows were published: `tidegate rollback MODULE:PIPELINE --to N --suspend` returns positions, state and tables
   to checkpoint N. Correct the code, then resume: the input is read again.

A *green* run with skipped tasks made no checkpoint, or found it completed before; the task's log says which. *Marking*
a run green or red by hand changes nothing: the next run ends its checkpoint if it is still open."""


def description(graph: Graph) -> str:
    """Return one line for the list of DAGs."""
    return f"Checkpoints of pipeline {graph.name}: {', '.join(graph.sources)} → {', '.join(graph.sinks)}"


def dag_text(graph: Graph, settings: Settings) -> str:
    """Return the DAG's documentation."""
    rows = "\n".join(f"| `{s.key}` | {_cell(s.value)} | {_cell(s.origin)} |" for s in settings.display_rows())
    return "\n\n".join(
        [
            f"# Pipeline {graph.name}",
            "Every run is one **checkpoint**: it takes new input through the whole pipeline, and then either all of it "
            "counts, in all sinks, or none of it.",
            *([AT_ONCE] if graph.at_least_once else []),
            f"```\n{picture(graph)}\n```",
            RED,
            f"## Settings\n\n| key | value | from |\n| --- | --- | --- |\n{rows}",
        ]
    )


def backfill_text(graph: Graph, dag_id: str) -> str:
    """Return the documentation of the DAG for backfills. dag_id: the pipeline's."""
    return (
        f"# Backfills of pipeline {graph.name}\n\nA run recomputes, with today's code, the pipeline's results since a "
        "checkpoint: it reads the same input again, into hidden tables, while the pipeline runs. **Trigger** it with "
        "*Begin after*; without that, it continues the existing backfill. The tables do not change until the backfill "
        "is swapped in. Only users who may edit the pipeline can request that, on the page *Checkpoints* of DAG "
        f"`{dag_id}`. That page also shows what a swap would change, and continues or discards the backfill.\n\nEach "
        "task can be retried, cleared or killed. Deleting a run leaves the backfill as it is, and listed on that "
        "page.\n\nTasks that read use the pool `tidegate_backfill`, which has one slot at first, and have a lower "
        "priority than all tasks of pipelines.\n\nThe same by command: `tidegate backfill MODULE:PIPELINE --from WHEN`."
    )


def _cell(text: str) -> str:
    return without_logins(text).replace("|", "\\|").replace("\n", " ") or "–"


def job_text(job: Job, settings: Mapping[str, str], *, at_least_once: bool = False) -> str:
    """Return the documentation of a job's task. settings: the job's own ones, for display."""
    parts = [
        ("Reads", [s.name for s in job.sources]),
        ("Takes from other jobs", list(job.takes)),
        ("Runs", [s.name for s in job.stages]),
        ("Stages rows for", [s.name for s in job.sinks]),
        ("Sends to other jobs", list(job.gives)),
        ("Has its own settings", [f"{key} = {without_logins(value)}" for key, value in settings.items()]),
    ]
    lines = []
    for title, names in parts:
        if names:
            lines.append(f"- {title}: " + ", ".join(f"`{name}`" for name in names))
    if at_least_once:
        visibility = "Its rows are in the tables at once; each attempt writes them again."
    else:
        visibility = "Its staged rows are invisible until `complete` has decided."
    return (
        "Runs one job of the checkpoint on Spark.\n\n" + "\n".join(lines) + f"\n\n{visibility} It can be retried, "
        "cleared, killed or run twice at once: only its first ack counts, as a whole."
    )


def gate_text(gated: GateNode) -> str:
    """Return the documentation of a gate's task."""
    rows = "\n".join(f"| `{key}` | {_cell(str(value))} |" for key, value in gated.gate.describe().items())
    return (
        f"Shows what gate `{gated.name}` ({gated.gate.kind}) found in the rows of `{gated.input}`: which rules broke, "
        "for how many rows, and what follows. The job has judged them; this task only shows the verdict.\n\n| | |\n"
        f"| --- | --- |\n{rows}\n\n**Red**: a rule says abort, or a person rejected the checkpoint. **Deferred**: it "
        "waits for a person to answer, under *Required Actions* or by `tidegate approve|reject`. **Skipped**: it has "
        "no verdict."
    )
