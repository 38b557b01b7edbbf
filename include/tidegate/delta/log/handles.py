"""delta-rs's own view of a table: opened anew, or told why it cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.delta.files.access import Location, unavailable
from tidegate.delta.log.checkpoints import do_without_torn, torn_checkpoints
from tidegate.delta.log.files import half_a_log, has_log, refuse_unreadable
from tidegate.errors import Corrupt, TidegateError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["find", "handle"]


def find(location: Location, version: int | None) -> DeltaTable | None:
    """delta-rs's view of the table. None: there is no table, and no part of a log."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    missing: Exception | None = None
    for _ in range(3):  # what is there, but not found, may have been made by somebody between the two looks
        try:
            return handle(location, version)
        except TableNotFoundError as error:
            missing = error
            if not has_log(location):
                return None
        except DeltaError as error:
            missing = error
            if not do_without_torn(location):
                raise _unreadable(location, version, error) from error
        except OSError as error:
            raise unavailable(location.url, error) from error
    assert missing is not None
    raise half_a_log(location, missing) from missing


def _unreadable(location: Location, version: int | None, error: Exception) -> TidegateError:
    if not (torn := torn_checkpoints(location)):
        return refuse_unreadable(location, version, error)
    return Corrupt(
        f"{location.url} cannot be read: {', '.join(torn)} is torn, and the commits before it do not make up for it",
        expected="Delta's own checkpoint of the log, or every commit that it stands for",
        help="restore that file, or the commits, from a copy of the storage; if all commits are there, and this "
        "process may not delete files there, delete it by hand",
        reason="LOG_BROKEN",
    )


def handle(location: Location, version: int | None) -> DeltaTable:
    """One that nobody else has."""
    from deltalake import DeltaTable

    return DeltaTable(location.url, version=version, storage_options=dict(location.options))
