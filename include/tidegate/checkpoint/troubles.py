"""Record errors that no checkpoint records: a run cannot plan, a job is retried, a table refuses a publish.

An aborted checkpoint records why it failed. A run that cannot even plan one records nothing, so its error would be only
in Airflow's logs. So each process writes its last error as a small hint next to the log (records/hints.py). Writing
it never causes a failure, and no decision depends on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from tidegate import seams
from tidegate.errors import Fenced, Invalid, Rejected, TidegateError, name_of, quoted_text
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.protocol import rules
from tidegate.protocol.view import View
from tidegate.records.records import Trouble

__all__ = ["count_unplanned", "is_current", "record_error", "recording_errors", "unplanned"]

MAX_TEXT = 4000
"""The maximum length of each recorded text: an error may quote a whole query plan."""


@contextlib.contextmanager
def recording_errors(ledger: Ledger, run: str, step: str, *, sees_rows: bool = True) -> Iterator[None]:
    """Record an error raised in the block. Fenced and Rejected are not recorded: another attempt leads, or there is
    nothing to do. sees_rows: the block handles rows, which the text of an unexpected exception may quote."""
    try:
        yield
    except (Fenced, Rejected):
        raise
    except TidegateError as error:
        record_error(ledger, run, step, error)
        raise
    except Exception as error:
        record_error(ledger, run, step, unforeseen(error, sees_rows=sees_rows))
        raise


def unforeseen(error: Exception, *, sees_rows: bool) -> TidegateError:
    """Return an unexpected exception as a TidegateError, so that it replaces the error recorded before it."""
    if sees_rows:
        what = name_of(error)
    else:
        message = " ".join(str(error).split())
        if message:
            what = f"{type(error).__name__}: {message}"
        else:
            what = type(error).__name__
    invalid = Invalid(
        what,
        help="the log of the failed task shows where; correct what it names. It is retried according to `restart`",
        reason="UNFORESEEN",
        quoted=quoted_text(error),
    )
    invalid.__cause__ = error
    return invalid


def record_error(ledger: Ledger, run: str, step: str, error: TidegateError) -> None:
    """Record the error, if possible."""
    with contextlib.suppress(TidegateError):
        if ledger.identity_or_none() is None:
            return  # any file in a folder without pipeline.json is taken for damage
        view = ledger.view(run)
        trouble = Trouble(
            **stamp(seams.new_id()),
            run=run,
            step=step,
            entry=rules.entry_of_run(view, run),
            unplanned=unplanned(ledger.trouble(), view),
            after=view.last_id,
            kind=error.kind,
            reason=error.reason,
            what=error.what[:MAX_TEXT],
            expected=error.expected[:MAX_TEXT],
            help=error.help[:MAX_TEXT],
            quotes_rows=False,
        )
        ledger.hint_trouble(trouble)


def count_unplanned(ledger: Ledger, run: str) -> Trouble | None:
    """Count a run that ended without planning a checkpoint. Return the updated record, or None if the last recorded
    error is of another run, or of a run that planned one."""
    with contextlib.suppress(TidegateError):
        trouble = ledger.trouble()
        if trouble is not None and trouble.run == run and trouble.entry is None:
            counted = msgspec.structs.replace(trouble, unplanned=trouble.unplanned + 1)
            ledger.hint_trouble(counted)
            return counted
    return None


def unplanned(trouble: Trouble | None, view: View) -> int:
    """Return how many runs in a row could not plan a checkpoint, or 0 if one was planned since."""
    if trouble is None or not _none_planned_since(trouble, view):
        return 0
    return trouble.unplanned


def _none_planned_since(trouble: Trouble, view: View) -> bool:
    return all(entry.control is not None for entry in view.entries if entry.id > trouble.after)


def is_current(trouble: Trouble, view: View, pending: frozenset[int]) -> bool:
    """Return whether the recorded error is still unresolved. pending: entries that are not on all tables yet.

    An error of a checkpoint is resolved when that is decided and published; one without a checkpoint, when one is
    planned.
    """
    if trouble.entry is None:
        return _none_planned_since(trouble, view)
    entry = view.get(trouble.entry)
    return entry is not None and (entry.open or entry.id in pending)
