"""The bodies of actions, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidegate.history.query import MAX_LENGTH
from tidegate.records.records import RENAMED_PARAMETERS

__all__ = [
    "ActionAnswer",
    "ActionRequest",
    "AnswerRequest",
    "BackfillRequest",
    "DiscardRequest",
    "RejudgeRequest",
    "ReleaseRequest",
    "ResumeRequest",
    "RollbackRequest",
    "RunRequest",
    "SampleRow",
    "SavepointRequest",
    "SwapRequest",
    "WhyRequest",
]

Note = Annotated[str, Field(max_length=1000, description="The reason, for the record")]
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,62}$")]
Text = Annotated[str, Field(max_length=1000)]
Sql = Annotated[str, Field(min_length=1, max_length=10_000)]
Number = Annotated[int, Field(ge=1, le=99_999_999)]
RestartFinished = Annotated[bool, Field(description="Resume although event time has ended: new rows are late")]
DropManualEdits = Annotated[bool, Field(description="Discard manual changes of state since then")]


class ActionRequest(BaseModel):
    """Unknown fields are refused, because a mistyped one would have no effect. `preview`: only return what the action
    would do, or refuse what it would refuse. A preview writes nothing, not even to the audit."""

    model_config = ConfigDict(extra="forbid")
    renamed: ClassVar[Mapping[str, str]] = {}
    """The fields' names until 0.2, and their new names."""

    note: Note = ""
    preview: bool = False

    @model_validator(mode="before")
    @classmethod
    def refuse_old_names(cls, values: Any) -> Any:
        """Refuse a field's old name, and name the new one."""
        old = [name for name in cls.renamed if isinstance(values, Mapping) and name in values]
        if old:
            texts = [f"{name} is called {cls.renamed[name]} since tidegate 0.3" for name in old]
            raise ValueError("; ".join(texts))
        return values


class RunRequest(ActionRequest):
    """A manual run. Its checkpoint may get a name."""

    savepoint: Name | None = None


class SavepointRequest(ActionRequest):
    """A name for a checkpoint, by default for the last one that is published to all tables."""

    name: Name
    checkpoint: Number | None = None


class AnswerRequest(ActionRequest):
    """An answer for one gate that holds a checkpoint, or for all of them. `backfill`: the checkpoint is one of this
    backfill, not of the pipeline."""

    checkpoint: Number
    gate: Name | None = None
    backfill: Name | None = None


class RejectRequest(AnswerRequest):
    """`quarantine`: read the input again at once, with the rows that broke the rules in quarantine. The pipeline is not
    suspended, and a backfill not ended."""

    quarantine: bool = False


class ResumeRequest(ActionRequest):
    """`quarantine_all`: quarantine the rows that a gate would hold again."""

    renamed = RENAMED_PARAMETERS["resume"]

    quarantine_all: bool = False
    restart_finished: RestartFinished = False


class RollbackRequest(ActionRequest):
    """`expected_undone`: the checkpoints that the user was shown as undone by the rollback. If these are no longer the
    same, nothing is done. `keep_rows_of`: sinks whose rows stay as they are. The input that is read again is written to
    them a second time."""

    renamed = RENAMED_PARAMETERS["rollback"]

    to: Number
    expected_undone: Annotated[list[Number], Field(max_length=100_000)] = []
    keep_rows_of: Annotated[list[Name], Field(max_length=1000)] = []
    suspend: bool = False


class ReleaseRequest(ActionRequest):
    """Rows that wait in a gate's quarantine: all of them, or those with these ids, or those that broke one of these
    rules. `correct`: new values of columns, as texts, or null. `correct_sql`: Spark SQL over each row as it was
    quarantined, by column, for users who may read rows. `expected_rows`: the number of rows that the user was
    shown. If it has changed, nothing is done."""

    renamed = RENAMED_PARAMETERS["release"]

    gate: Name
    expected_rows: Annotated[int, Field(ge=0)] | None = None
    ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=MAX_LENGTH)] = []
    rules: list[Annotated[str, Field(max_length=200)]] = []
    correct: Annotated[dict[Text, Text | None], Field(max_length=100)] = {}
    correct_sql: Annotated[
        dict[Text, Annotated[str, Field(min_length=1, max_length=10_000)]], Field(max_length=100)
    ] = {}
    discard: bool = False


class RejudgeRequest(ActionRequest):
    """Rows that wait in a gate's quarantine, to be judged by today's suite: all of them, or those with these ids, or
    those that broke one of these rules. Those that pass continue. `expected_rows`: as for a release."""

    gate: Name
    expected_rows: Annotated[int, Field(ge=0)] | None = None
    ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=MAX_LENGTH)] = []
    rules: list[Annotated[str, Field(max_length=200)]] = []


class BackfillRequest(ActionRequest):
    """The arguments of `tidegate backfill`. Without begin_after, the existing backfill continues."""

    renamed = RENAMED_PARAMETERS["backfill"]

    begin_after: Annotated[str, Field(max_length=200, description="A checkpoint, a savepoint, a time, beginning")] = ""
    stop_after: Annotated[
        str, Field(max_length=200, description="The checkpoint after which to stop, to inspect a partial result")
    ] = ""
    batch_factor: Annotated[
        int, Field(ge=1, le=1_000_000, description="How many times the sources' bounds a checkpoint reads")
    ] = 1
    cuts: Annotated[
        Literal["", "own", "recorded"],
        Field(description="recorded: one checkpoint for each of the pipeline's, with exactly its input"),
    ] = ""
    drop_manual_edits: DropManualEdits = False
    name: Name | None = None
    dry_run: bool = False
    pause_seconds: Annotated[float, Field(ge=0, description="Seconds between two of its checkpoints")] = 0.0


class SwapRequest(ActionRequest):
    """The swap of a backfill once it has caught up, or the acceptance of a proposal. With begin_after, the backfill
    begins first. `keep_rows_of`, `retract`, `discard_commits`: what to do with tables to which other writers have
    written since. `fail_on`: nothing is swapped in if more differs then, such as `rows > 0.1 %` or `schema`."""

    renamed = RENAMED_PARAMETERS["swap"]

    begin_after: Annotated[str, Field(max_length=200)] = ""
    name: Name | None = None
    drop_manual_edits: DropManualEdits = False
    keep_rows_of: Annotated[list[Name], Field(max_length=1000)] = []
    retract: Annotated[list[Name], Field(max_length=1000)] = []
    discard_commits: Annotated[list[Name], Field(max_length=1000)] = []
    fail_on: Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=10)] = []


class DiscardRequest(ActionRequest):
    """The end of a backfill: its files are removed."""

    name: Name


class WhyRequest(ActionRequest):
    """A row of a sink's table, by its values as a page shows them. If the table has a key, only the key counts.
    `checkpoint`: as of this one, by default the last published."""

    sink: Name
    checkpoint: Number | None = None
    values: Annotated[dict[Text, Text | None], Field(min_length=1, max_length=1000)]


class SampleRow(BaseModel):
    """A quarantined row, and what a correction would make of it. Values are texts, cut if they are long."""

    id: str
    before: Annotated[dict[str, str | None], Field(description="Private columns are left out")]
    after: Annotated[dict[str, str | None], Field(description="By corrected column")]
    stays_because: Annotated[str | None, Field(description="Why it would stay in quarantine; null: it continues")]


class ActionAnswer(BaseModel):
    """The result of an action, or of its preview."""

    succeeded: Annotated[bool, Field(description="False: it was only a preview")] = True
    message: Annotated[str, Field(description="The result in a sentence; empty: it was a preview")]
    run_id: Annotated[str | None, Field(description="The DAG run that does it")] = None
    key: Annotated[str | None, Field(description="Of a question: where its answer will be")] = None
    effects: Annotated[list[str], Field(description="A preview's sentences on what would be done")] = []
    samples: Annotated[list[SampleRow], Field(description="A preview's rows before and after, if it corrects any")] = []
