"""Settings of a session that do not change while it lives: asked for once, as each question is a round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["constant_setting"]

_ANSWERS: Final = "_tidegate_settings"


def constant_setting(spark: SparkSession, key: str) -> str:
    """Return the value of a setting; empty: it has none."""
    answers: dict[str, str] = vars(spark).setdefault(_ANSWERS, {})
    if key not in answers:
        answers[key] = str(spark.conf.get(key, "") or "")
    return answers[key]
