"""How much waits in a table behind a range: the next versions are looked at, what comes after them is estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidegate import seams
from tidegate.delta import Commit, DataFile, TableLog
from tidegate.records.records import Amount, Lag, sum_of

__all__ = ["lag_behind"]

_VERSIONS: Final = 16
"""How many versions are looked at: a plan must not wait for the commits of a long backlog."""
_VERSIONS_IN_A_BUCKET: Final = 4
"""The same where each is a request."""


def lag_behind(
    log: TableLog, version: int, left: Sequence[DataFile], files_of: Callable[[Commit], Sequence[DataFile]]
) -> Lag:
    """Return how much waits after a range.

    left: the files of `version` that are not in the range. files_of: those that a later version gives to be read.
    """
    looked_at: list[Commit] = []
    number = version + 1
    most = _VERSIONS if log.location.is_local else _VERSIONS_IN_A_BUCKET
    while len(looked_at) < most and (commit := log.commit(number)) is not None:
        looked_at.append(commit)
        number += 1
    amounts = [_amount(files_of(commit)) for commit in looked_at]
    later = sum_of(amounts)
    all_later = max((log.head or 0) - version, len(looked_at))
    times = all_later / len(looked_at) if looked_at else 0.0
    here = _amount(left)
    waiting = [commit for commit, amount in zip(looked_at, amounts, strict=True) if amount.files]
    first = log.commit(version) if left else next(iter(waiting), None)
    return Lag(
        rows=_both(here.rows, later.rows, times),
        bytes=_both(here.bytes, later.bytes, times),
        files=_both(here.files, later.files, times),
        seconds=_age(first),
    )


def _amount(files: Iterable[DataFile]) -> Amount:
    parts = [Amount(rows=file.rows, bytes=file.size, files=1) for file in files]
    return sum_of(parts)


def _both(here: int | None, later: int | None, times: float) -> int | None:
    return None if here is None or later is None else here + round(later * times)


def _age(commit: Commit | None) -> float | None:
    millis = commit.millis if commit is not None else None
    return round(max(seams.now().timestamp() - millis / 1000, 0.0), 1) if millis is not None else None
