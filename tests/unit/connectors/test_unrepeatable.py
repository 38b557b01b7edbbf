"""What reads the time, or chance, is found in the code of a stage, as far as that can be seen."""

import random
from datetime import UTC, datetime
from functools import partial

import pytest

from tidegate.connectors.unrepeatable import unrepeatable_calls, unrepeatable_in_text


def stamped(rows):
    """Adds the moment, like current_timestamp()."""
    from pyspark.sql import functions as F

    return rows.withColumn("at", F.current_timestamp())


def in_sql(rows):
    return rows.selectExpr("id", "now() AS at", "'rand()' AS text", "uuid", "version")


def by_python(rows):
    return [datetime.now(UTC), *[inner(row) for row in rows]]


def inner(row):
    return random.random()


def plain(rows):
    return rows.where("at > date '2026-01-01'").selectExpr("uuid", "now", "rand", "unix_timestamp(at)", "date(at)")


def timed(key, rows, state, timers):
    timers.clock(timers.now)


def around(function):
    def called(rows):
        return function(rows)

    return called


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (stamped, ["current_timestamp"]),
        (in_sql, ["now"]),
        (by_python, ["now", "random"]),
        (around(stamped), ["current_timestamp"]),
        (partial(by_python), ["now", "random"]),
        (plain, []),
        (timed, []),
        (len, []),
    ],
)
def test_a_stage_that_reads_the_time_or_chance(function, names):
    assert unrepeatable_calls(function) == names


def test_an_expression_that_reads_the_time_or_chance():
    assert unrepeatable_in_text("sum(v) FILTER (WHERE at < Current_Timestamp)") == ["current_timestamp"]
    assert unrepeatable_in_text("unix_timestamp( ) + unix_timestamp(at)") == ["unix_timestamp"]
    assert unrepeatable_in_text("max(`rand()`), count('now()'), sum(now), shuffle(x)") == ["shuffle"]
