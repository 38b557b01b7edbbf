"""What the actions take, and what they answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tidegate.history.query import MAX_LENGTH

__all__ = [
    "ActionAnswer",
    "ActionRequest",
    "AskedAnswer",
    "AskedBackfill",
    "AskedDiscard",
    "AskedRelease",
    "AskedResume",
    "AskedRollback",
    "AskedRun",
    "AskedSavepoint",
    "AskedSwap",
]

Note = Annotated[str, Field(max_length=1000, description="The reason, for the record")]
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,62}$")]
Text = Annotated[str, Field(max_length=1000)]
Number = Annotated[int, Field(ge=1, le=99_999_999)]


class ActionRequest(BaseModel):
    """Unknown fields are refused: a mistyped one would do nothing. `preview`: only tell what the action would do, or
    refuse what it would refuse. Nothing is written then, not even who has asked."""

    model_config = ConfigDict(extra="forbid")
    note: Note = ""
    preview: bool = False


class AskedRun(ActionRequest):
    """A run by hand: its checkpoint may get a name."""

    savepoint: Name | None = None


class AskedSavepoint(ActionRequest):
    """A name for a checkpoint; by default for the last one that is on all tables."""

    name: Name
    checkpoint: Number | None = None


class AskedAnswer(ActionRequest):
    """To what holds a checkpoint: one gate, or all. `backfill`: it is a checkpoint of this one, not the pipeline's."""

    checkpoint: Number
    gate: Name | None = None
    backfill: Name | None = None


class AskedResume(ActionRequest):
    """quarantine_all: what a gate would hold again is set aside."""

    quarantine_all: bool = False
    after_end: bool = False


class AskedRollback(ActionRequest):
    """`undone`: what the user was shown would no longer count. If that is anything else by now, nothing is done.
    `keep`: sinks whose rows stay as they are, while what is read again is written to them once more."""

    to: Number
    undone: Annotated[list[Number], Field(max_length=100_000)] = []
    keep: Annotated[list[Name], Field(max_length=1000)] = []
    suspend: bool = False


class AskedRelease(ActionRequest):
    """Rows that wait in a gate's quarantine: all, or these, or those that broke one of these rules. `correct`: values,
    as texts, that columns get on their way on; null makes one null. `shown`: how many rows the user was told that these
    are. If they are others by now, nothing is done."""

    gate: Name
    shown: Annotated[int, Field(ge=0)] | None = None
    ids: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=MAX_LENGTH)] = []
    rules: list[Annotated[str, Field(max_length=200)]] = []
    correct: Annotated[dict[Text, Text | None], Field(max_length=100)] = {}
    discard: bool = False


class AskedBackfill(ActionRequest):
    """As `tidegate backfill` takes it: without begin_after, the backfill that there is continues."""

    begin_after: Annotated[str, Field(max_length=200, description="A checkpoint, a savepoint, a time, beginning")] = ""
    to: Annotated[str, Field(max_length=200, description="Where to stop, for a look at a part")] = ""
    larger: Annotated[int, Field(ge=1, le=1_000_000, description="Times as much in a checkpoint as is allowed")] = 1
    cuts: Annotated[
        Literal["", "own", "recorded"],
        Field(description="recorded: a checkpoint for each of the pipeline's, with exactly its input"),
    ] = ""
    drop_by_hand: Annotated[bool, Field(description="Lose what was changed in states by hand since then")] = False
    name: Name | None = None
    dry_run: bool = False
    pause: Annotated[float, Field(ge=0, description="Seconds between two of its checkpoints")] = 0.0


class AskedSwap(ActionRequest):
    """The swap of a backfill once it has caught up; with begin_after it begins first. `keep`, `retract`,
    `discard_commits`: what happens to tables that others have written to since."""

    begin_after: Annotated[str, Field(max_length=200)] = ""
    name: Name | None = None
    drop_by_hand: Annotated[bool, Field(description="Lose what was changed in states by hand since then")] = False
    keep: Annotated[list[Name], Field(max_length=1000)] = []
    retract: Annotated[list[Name], Field(max_length=1000)] = []
    discard_commits: Annotated[list[Name], Field(max_length=1000)] = []


class AskedDiscard(ActionRequest):
    """The end of a backfill: its files are removed."""

    name: Name


class ActionAnswer(BaseModel):
    """The result as a text; `run_id` if a run of the DAG does it. Of a preview: what would be done, in sentences."""

    done: bool = True
    told: str
    run_id: str | None = None
    effects: list[str] = []
