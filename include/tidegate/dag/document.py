"""The documentation of the DAG in Airflow: the pipeline, its picture, its settings, and what to do when it is red.

Airflow shows Markdown, but neither images nor mermaid: the picture is text.
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
    "backfill_text",
    "dag_text",
    "description",
    "gate_text",
    "job_text",
]

TRIGGER = """Plans this run's checkpoint. Aborts dead checkpoints, publishes pending ones, asks the sources for new
input, and records the input of this run. It waits, deferred, while other runs are in progress.

**Clear it** at any time: a run that has a checkpoint keeps it; one whose checkpoint was aborted gets a new one."""

COMPLETE = """Decides this run's checkpoint once all jobs have ended: **completed**, and every sink shows it, or
**aborted**, and the run is red. Nothing that was aborted is ever visible, and its input is in the next checkpoint.

*Skipped* means that there was nothing to do: no checkpoint was wanted, or it was completed before."""

CHECK = """Tells what the backfill would read again and change, and what of that is gone. Refuses what is impossible.
It writes nothing. Its result is also its XCom."""

REPLAY = """Reads the same input again through today's code, into tables that nobody sees, while the pipeline runs on.
Ends when it has read all that the pipeline has.

**Clear it**, let it fail, or kill it at any time: it continues where it stopped."""

COMPARE = """Counts the rows that a swap would take away and bring, table by table: in its log, its XCom, and on the
pipeline's page *Checkpoints*. With the field `diff`, some rows are in the XCom `rows`."""

SWAP = """Skipped unless the swap was asked for by somebody who may edit the pipeline: button *Swap in* on its page
*Checkpoints*. The pipeline waits while the rest is read; then each table changes by one commit."""

DISCARD = """Skipped unless the backfill is to be discarded: button *Discard* on the pipeline's page *Checkpoints*."""

AT_ONCE = """**At least once** (`mode`): jobs write rows to their tables as soon as they have them. So what is said here
of rows that are in no table holds for positions and what operators remember: rows that an aborted checkpoint had
written stay, and come again with the next one."""

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
        f"# Backfills of pipeline {graph.name}\n\nA run computes again, with today's code, what the pipeline has made "
        "since a checkpoint: it reads the same input beside it, into tables that nobody sees. **Trigger** it with "
        "*Begin after*; without that, the backfill that there is continues. Nothing changes for anybody until it is "
        "swapped in, which only those who may edit the pipeline can ask for, on the page *Checkpoints* of DAG "
        f"`{dag_id}`: there is what a swap would change, and where it is continued, swapped in or "
        "discarded.\n\nEach task can be retried, cleared, killed. A run that is deleted leaves the backfill as it is, "
        "and listed on that page.\n\nTasks that read are in the pool `tidegate_backfill`, with one slot to begin "
        "with, and below all tasks of pipelines in priority.\n\nThe same by command: `tidegate backfill "
        "MODULE:PIPELINE --from WHEN`."
    )


def _cell(text: str) -> str:
    return without_logins(text).replace("|", "\\|").replace("\n", " ") or "–"


def job_text(job: Job, own: Mapping[str, str], *, at_least_once: bool = False) -> str:
    """Return the documentation of a job's task. own: its own settings, for display."""
    parts = [
        ("Reads", [s.name for s in job.sources]),
        ("Takes from other jobs", list(job.takes)),
        ("Runs", [s.name for s in job.stages]),
        ("Stages rows for", [s.name for s in job.sinks]),
        ("Sends to other jobs", list(job.gives)),
    ]
    parts.append(("Has of its own", [f"{key} = {without_logins(value)}" for key, value in own.items()]))
    lines = "\n".join(f"- {title}: {', '.join(f'`{name}`' for name in names)}" for title, names in parts if names)
    stages = "What it stages is out of sight until `complete` has decided."
    if at_least_once:
        stages = "Its rows are in the tables at once; each attempt writes them once more."
    return (
        f"Runs one job of the checkpoint on Spark.\n\n{lines}\n\n{stages} It can be retried, cleared, killed or run "
        "twice at once: its first acknowledgement counts, whole."
    )


def gate_text(gated: GateNode) -> str:
    """Return the documentation of a gate's task."""
    rows = "\n".join(f"| `{key}` | {_cell(str(value))} |" for key, value in gated.gate.describe().items())
    return (
        f"Shows what gate `{gated.name}` ({gated.gate.kind}) found in the rows of `{gated.input}`: which rules broke, "
        "how many rows, what follows. The job has judged them; this task only tells.\n\n| | |\n| --- | --- |\n"
        f"{rows}\n\n**Red**: a rule says abort, or a person said no. **Deferred**: it waits for a person, under "
        "*Required Actions* or `tidegate approve|reject`. **Skipped**: there is no verdict."
    )
