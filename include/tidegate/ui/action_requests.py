"""What the actions take, and what they answer."""

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
    "ReleaseRequest",
    "ResumeRequest",
    "RollbackRequest",
    "RunRequest",
    "SavepointRequest",
    "SwapRequest",
]

Note = Annotated[str, Field(max_length=1000, description="The reason, for the record")]
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,62}$")]
Text = Annotated[str, Field(max_length=1000)]
Number = Annotated[int, Field(ge=1, le=99_999_999)]
RestartFinished = Annotated[bool, Field(description="Resume though event time has ended: further rows are late")]
DropManualEdits = Annotated[bool, Field(description="Lose changes that people have made to states since then")]


class ActionRequest(BaseModel):
    """Unknown fields are refused: a mistyped one would do nothing. `preview`: only tell what the action would do, or
    refuse what it would refuse. Nothing is written then, not even who has asked."""

    model_config = ConfigDict(extra="forbid")
    renamed: ClassVar[Mapping[str, str]] = {}
    """What fields were called until 0.2, and are called now."""

    note: Note = ""
    preview: bool = False

    @model_validator(mode="before")
    @classmethod
    def refuse_old_names(cls, values: Any) -> Any:
        """Refuse a field's old name, and say the new one."""
        old = [name for name in cls.renamed if isinstance(values, Mapping) and name in values]
        if old:
            texts = [f"{name} is called {cls.renamed[name]} since tidegate 0.3" for name in old]
            raise ValueError("; ".join(texts))
        return values


class RunRequest(ActionRequest):
    """A run by hand: its checkpoint may get a name."""

    savepoint: Name | None = None


class SavepointRequest(ActionRequest):
    """A name for a checkpoint; by default for the last one that is on all tables."""

    name: Name
    checkpoint: Number | None = None


class AnswerRequest(ActionRequest):
    """To what holds a checkpoint: one gate, or all. `backfill`: it is a checkpoint of this one, not the pipeline's."""

    checkpoint: Number
    gate: Name | None = None
    backfill: Name | None = None


class ResumeRequest(ActionRequest):
    """`quarantine_all`: what a gate would hold again is quarantined."""

    renamed = RENAMED_PARAMETERS["resume"]

    quarantine_all: bool = False
    restart_finished: RestartFinished = False


class RollbackRequest(ActionRequest):
    """`expected_undone`: the checkpoints that the user was shown as those that would no longer count. If others would
    by now, nothing is done. `keep_rows_of`: sinks whose rows stay as they are, while what is read again is written to
    them once more."""

    renamed = RENAMED_PARAMETERS["rollback"]

    to: Number
    expected_undone: Annotated[list[Number], Field(max_length=100_000)] = []
    keep_rows_of: Annotated[list[Name], Field(max_length=1000)] = []
    suspend: bool = False


class ReleaseRequest(ActionRequest):
    """Rows that wait in a gate's quarantine: all, or these, or those that broke one of these rules. `correct`: values,
    as texts, that columns get on their way on; null makes one null. `expected_rows`: how many rows the user was shown.
    If the number differs by now, nothing is done."""

    renamed = RENAMED_PARAMETERS["release"]

    gate: Name
    expected_rows: Annotated[int, Field(ge=0)] | None = None
    ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=MAX_LENGTH)] = []
    rules: list[Annotated[str, Field(max_length=200)]] = []
    correct: Annotated[dict[Text, Text | None], Field(max_length=100)] = {}
    discard: bool = False


class BackfillRequest(ActionRequest):
    """As `tidegate backfill` takes it: without begin_after, the backfill that there is continues."""

    renamed = RENAMED_PARAMETERS["backfill"]

    begin_after: Annotated[str, Field(max_length=200, description="A checkpoint, a savepoint, a time, beginning")] = ""
    stop_after: Annotated[
        str, Field(max_length=200, description="The checkpoint after which to stop, for a look at a part")
    ] = ""
    batch_factor: Annotated[
        int, Field(ge=1, le=1_000_000, description="How many times the sources' bounds a checkpoint reads")
    ] = 1
    cuts: Annotated[
        Literal["", "own", "recorded"],
        Field(description="recorded: a checkpoint for each of the pipeline's, with exactly its input"),
    ] = ""
    drop_manual_edits: DropManualEdits = False
    name: Name | None = None
    dry_run: bool = False
    pause_seconds: Annotated[float, Field(ge=0, description="Seconds between two of its checkpoints")] = 0.0


class SwapRequest(ActionRequest):
    """The swap of a backfill once it has caught up; with begin_after it begins first. `keep_rows_of`, `retract`,
    `discard_commits`: what happens to tables that others have written to since."""

    renamed = RENAMED_PARAMETERS["swap"]

    begin_after: Annotated[str, Field(max_length=200)] = ""
    name: Name | None = None
    drop_manual_edits: DropManualEdits = False
    keep_rows_of: Annotated[list[Name], Field(max_length=1000)] = []
    retract: Annotated[list[Name], Field(max_length=1000)] = []
    discard_commits: Annotated[list[Name], Field(max_length=1000)] = []


class DiscardRequest(ActionRequest):
    """The end of a backfill: its files are removed."""

    name: Name


class ActionAnswer(BaseModel):
    """The result of an action, or of its preview."""

    succeeded: Annotated[bool, Field(description="False: it was only a preview")] = True
    message: Annotated[str, Field(description="The result in a sentence; empty: it was a preview")]
    run_id: Annotated[str | None, Field(description="The DAG run that does it")] = None
    effects: Annotated[list[str], Field(description="Of a preview: what would be done, in sentences")] = []
