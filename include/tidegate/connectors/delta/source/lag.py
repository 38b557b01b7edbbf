"""How much input waits in a table after a range. The next versions are read; the size of later ones is estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidegate import seams
from tidegate.delta import Commit, DataFile, TableLog
from tidegate.records.records import Amount, Lag, sum_of

__all__ = ["measure_lag"]

_MAX_VERSIONS: Final = 16
"""The most versions to read: a plan must not wait for the commits of a long backlog."""
_MAX_VERSIONS_ON_STORE: Final = 4
"""The same in an object store, where each version is a request."""


def measure_lag(
    log: TableLog, version: int, remaining: Sequence[DataFile], files_to_read: Callable[[Commit], Sequence[DataFile]]
) -> Lag:
    """Return how much input waits after a range.

    remaining: the files of `version` that are not in the range. files_to_read: returns the files of a later version
    that the source reads.
    """
    max_versions = _MAX_VERSIONS if log.location.is_local else _MAX_VERSIONS_ON_STORE
    commits: list[Commit] = []
    while len(commits) < max_versions and (commit := log.commit(version + 1 + len(commits))) is not None:
        commits.append(commit)
    amounts = [_amount(files_to_read(commit)) for commit in commits]
    here, later = _amount(remaining), sum_of(amounts)
    version_count = max((log.head or 0) - version, len(commits))
    factor = version_count / len(commits) if commits else 0.0  # extrapolates to versions that were not read
    return Lag(
        rows=_total(here.rows, later.rows, factor),
        bytes=_total(here.bytes, later.bytes, factor),
        files=_total(here.files, later.files, factor),
        seconds=_age(_first_waiting(log, version, remaining, commits, amounts)),
    )


def _first_waiting(
    log: TableLog, version: int, remaining: Sequence[DataFile], commits: Sequence[Commit], amounts: Sequence[Amount]
) -> Commit | None:
    """Return the first commit with input that waits."""
    if remaining:
        return log.commit(version)
    for commit, amount in zip(commits, amounts, strict=True):
        if amount.files:
            return commit
    return None


def _amount(files: Iterable[DataFile]) -> Amount:
    return sum_of([Amount(rows=file.rows, bytes=file.size, files=1) for file in files])


def _total(here: int | None, later: int | None, factor: float) -> int | None:
    if here is None or later is None:
        return None
    return here + round(later * factor)


def _age(commit: Commit | None) -> float | None:
    """Return the seconds since a commit, or None if its time is unknown."""
    if commit is None or commit.millis is None:
        return None
    return round(max(seams.now().timestamp() - commit.millis / 1000, 0.0), 1)
