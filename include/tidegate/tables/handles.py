"""delta-rs's own view of a table: opened anew, or told why it cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.tables.files import Location, unavailable
from tidegate.tables.rawlog import half_a_log, has_log, refuse_unreadable

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["find", "handle"]


def find(location: Location, version: int | None) -> DeltaTable | None:
    """delta-rs's view of the table. None: there is no table, and no part of a log."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    missing: Exception | None = None
    for _ in range(2):  # what is there, but not found, may have been made by somebody between the two looks
        try:
            return handle(location, version)
        except TableNotFoundError as error:
            missing = error
            if not has_log(location):
                return None
        except DeltaError as error:
            raise refuse_unreadable(location, version, error) from error
        except OSError as error:
            raise unavailable(location.url, error) from error
    assert missing is not None
    raise half_a_log(location, missing) from missing


def handle(location: Location, version: int | None) -> DeltaTable:
    """One that nobody else has."""
    from deltalake import DeltaTable

    return DeltaTable(location.url, version=version, storage_options=dict(location.options))
