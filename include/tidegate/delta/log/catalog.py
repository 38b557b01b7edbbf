"""Tables that a catalog manages, as Unity Catalog does: what is in them, their log alone does not tell."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.errors import Invalid

__all__ = ["CATALOG_TABLE", "refuse_catalog"]

CATALOG_TABLE = "CATALOG_TABLE"
"""The reason of a refusal."""
_CATALOG_FEATURES = {"catalogManaged", "catalogOwned", "catalogOwned-preview"}


def refuse_catalog(url: str, features: Collection[str]) -> None:
    """Raise Invalid for a table that a catalog manages, as Unity Catalog does."""
    if managed := sorted(_CATALOG_FEATURES & set(features)):
        raise Invalid(
            f"{url} is managed by a catalog ({', '.join(managed)}): its log alone does not tell what is in it",
            expected="a table whose log is the truth",
            help="to read it, use a stage with Spark's catalog, or copy it to a table of its own; to publish, use a "
            "table that no catalog manages",
            reason=CATALOG_TABLE,
        )
