"""The index of Data Docs: readers find all of it, or what was there before, or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.gates.expectations.data_docs import INDEX, pages_of, site
from tidegate.records.names import entry_name


def test_an_index_whose_writer_is_stopped_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / INDEX
    assert site._write(index, {"a": 1})
    assert not site._write(index, {"a": 1})

    def full(*_: object) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        site._write(index, {"a": 2})
    assert json.loads(index.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [index]


@pytest.mark.parametrize("data", [b'{"00000001": {"eno', b"\xff", None])
def test_an_index_that_nobody_can_read_has_no_pages(data: bytes | None) -> None:
    ledger: Any = SimpleNamespace(store=SimpleNamespace(read=lambda _: data))
    assert pages_of(ledger, 1) == {}


def test_pages_are_those_of_the_checkpoint() -> None:
    data = json.dumps({entry_name(1): {"enough": "a.html"}}).encode()
    ledger: Any = SimpleNamespace(store=SimpleNamespace(read=lambda _: data))
    assert pages_of(ledger, 1) == {"enough": "a.html"}
