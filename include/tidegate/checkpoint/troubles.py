"""Word of errors that no checkpoint tells of: nothing was planned, a job is tried again, a table refuses a publish.

An aborted checkpoint says why it failed. A run that cannot even plan one leaves nothing, and its reason would be found
in Airflow's logs only. So whoever meets an error leaves it as one small hint beside the log (records/records.py).
Leaving it is never worth a failure, and nothing is decided by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from tidegate import seams
from tidegate.errors import Fenced, Invalid, Rejected, TidegateError
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.protocol import rules as protocol
from tidegate.protocol.view import View
from tidegate.records.records import Trouble

__all__ = ["count_unplanned", "is_current", "record_error", "recording_errors", "unplanned"]

LONGEST = 4000
"""Characters of each text that are kept: one may quote a whole query plan."""


@contextlib.contextmanager
def recording_errors(ledger: Ledger, run: str, step: str) -> Iterator[None]:
    """Leave word of what fails in the block. That others lead, or that there is nothing to do, is no trouble."""
    try:
        yield
    except (Fenced, Rejected):
        raise
    except TidegateError as error:
        record_error(ledger, run, step, error)
        raise
    except Exception as error:
        record_error(ledger, run, step, unforeseen(error))
        raise


def unforeseen(error: Exception) -> TidegateError:
    """An exception that nobody has thought of, as word of it: it is a cause like any other, and what was met before it
    is none any more."""
    said = " ".join(str(error).split())
    told = Invalid(
        f"{type(error).__name__}{': ' if said else ''}{said}",
        help="the log of the task that met it shows where; correct what it names. It is tried again as `restart` says",
        reason="UNFORESEEN",
    )
    told.__cause__ = error
    return told


def record_error(ledger: Ledger, run: str, step: str, error: TidegateError) -> None:
    """Leave word of the error, if that can be done."""
    with contextlib.suppress(TidegateError):
        if ledger.begun() is None:
            return  # whatever lies in a folder without pipeline.json is taken for damage
        view = ledger.view(run)
        trouble = Trouble(
            **stamp(seams.new_id()),
            run=run,
            step=step,
            entry=protocol.own_entry(view, run),
            unplanned=unplanned(ledger.trouble(), view),
            after=view.last_id,
            kind=error.kind,
            reason=error.reason,
            what=error.what[:LONGEST],
            expected=error.expected[:LONGEST],
            help=error.help[:LONGEST],
        )
        ledger.hint_trouble(trouble)


def count_unplanned(ledger: Ledger, run: str) -> Trouble | None:
    """Say that the run has ended, and could plan no checkpoint. None: that is not what it has left word of."""
    with contextlib.suppress(TidegateError):
        trouble = ledger.trouble()
        if trouble is not None and trouble.run == run and trouble.entry is None:
            counted = msgspec.structs.replace(trouble, unplanned=trouble.unplanned + 1)
            ledger.hint_trouble(counted)
            return counted
    return None


def unplanned(trouble: Trouble | None, view: View) -> int:
    """How many runs in a row could not plan a checkpoint, if none was planned since."""
    return trouble.unplanned if trouble is not None and _nothing_planned(trouble, view) else 0


def _nothing_planned(trouble: Trouble, view: View) -> bool:
    return all(entry.control is not None for entry in view.entries if entry.id > trouble.after)


def is_current(trouble: Trouble, view: View, owed: frozenset[int]) -> bool:
    """Whether the log does not know better by now. `owed`: entries that are not on all tables yet.

    A trouble with a checkpoint is over when that is decided and published; one without, when another was planned.
    """
    if trouble.entry is None:
        return _nothing_planned(trouble, view)
    entry = view.get(trouble.entry)
    return entry is not None and (entry.open or entry.id in owed)
