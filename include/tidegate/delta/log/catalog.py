"""Refuses tables managed by a catalog, such as Unity Catalog, because their log alone does not determine their rows."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.errors import Invalid

__all__ = ["CATALOG_TABLE", "refuse_catalog"]

CATALOG_TABLE = "CATALOG_TABLE"
"""Reason code of the refusal."""
_CATALOG_FEATURES = {"catalogManaged", "catalogOwned", "catalogOwned-preview"}


def refuse_catalog(url: str, features: Collection[str]) -> None:
    """Raise Invalid for a table that a catalog manages."""
    managed = sorted(_CATALOG_FEATURES & set(features))
    if managed:
        raise Invalid(
            f"{url} is managed by a catalog ({', '.join(managed)}): its log alone does not determine its rows",
            expected="a table whose log alone determines its rows",
            help="to read it, use a stage with Spark's catalog, or copy it to a separate table; to publish, use a "
            "table that no catalog manages",
            reason=CATALOG_TABLE,
        )
