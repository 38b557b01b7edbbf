"""How corrections are written on the command line, and what is no correction."""

from __future__ import annotations

import argparse

import pytest

from tidegate.cli.quality.corrections import Correction, correction
from tidegate.errors import Invalid
from tidegate.gates.quarantine.returning import is_late
from tidegate.ledger.ledger import stamp
from tidegate.records.codec import encode
from tidegate.records.records import Request


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("amount=0", Correction("amount", "0", False)),
        ("amount=", Correction("amount", "", False)),
        ("note=a = b", Correction("note", "a = b", False)),
        ("unit price=3", Correction("unit price", "3", False)),
        ("amount = 0", Correction("amount", "0", True)),
        ("amount  =  abs(amount) ", Correction("amount", "abs(amount)", True)),
        ("`unit price` = `unit price` * 2", Correction("unit price", "`unit price` * 2", True)),
        ("even = id % 2 = 0", Correction("even", "id % 2 = 0", True)),
    ],
)
def test_spaces_around_the_equals_sign_make_it_sql(text: str, meant: Correction) -> None:
    assert correction(text) == meant
    assert correction(meant.word) == meant, "the command that a text gives means the same"


@pytest.mark.parametrize("text", ["amount= 0", "amount =0", "amount = ", "amount =", "note= hello"])
def test_what_could_mean_two_things_is_refused_with_both(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"two things.*no space on either side.*one on both sides"):
        correction(text)


@pytest.mark.parametrize("text", ["amount", "=0", " = 1", ""])
def test_without_a_column_or_a_value_it_is_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is neither COLUMN=VALUE"):
        correction(text)


def request(**about: object) -> Request:
    return Request(**stamp("x"), number=1, gate="checked", by="mia", **about)  # type: ignore[arg-type]


def test_only_rows_that_are_released_are_corrected_and_each_column_once() -> None:
    with pytest.raises(Invalid, match="only rows that are released are corrected"):
        encode(request(action="rejudge", correct_sql={"a": "b"}))
    with pytest.raises(Invalid, match="a column is corrected in two ways"):
        encode(request(action="release", correct={"a": "1"}, correct_sql={"a": "b"}))
    both = request(action="release", correct={"a": "1", "c": None}, correct_sql={"b": "upper(b)"})
    assert both.corrections == ["a to '1'", "c to null", "b = upper(b)"]
    assert both.judges
    assert request(action="rejudge").judges
    assert not request(action="release").judges
    assert not request(action="discard", correct={"a": "1"}).judges, "as records of 0.2 may say"


def test_a_release_in_place_helps_late_rows_only() -> None:
    assert is_late("too late for window 'hours', whose watermark is at 2026-03-01 12:00:00 UTC")
    assert is_late("no time in at, which window 'hours' needs")
    assert not is_late("amount cannot be corrected: cast(raw AS int) fails for this row")
    assert not is_late("corrected, it breaks positive")
    assert not is_late("judged again, it breaks positive")
    assert not is_late(None)
