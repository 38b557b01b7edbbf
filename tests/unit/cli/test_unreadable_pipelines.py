"""A pipeline that cannot be read, for a reason that nobody has foreseen, hides no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.prometheus import parsed
from tests.kit.shop import Shop
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.protocol.view import View


@pytest.fixture
def two_pipelines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipeline `orders`; and `broken`, whose log makes our code fail as only a defect of it does."""
    Shop(folder).checkpoint()
    open_ledger(str(folder / "ledger"), "broken").start()
    view = Ledger.view

    def viewed(ledger: Ledger, *args: Any, **words: Any) -> View:
        if ledger.pipeline == "broken":
            raise TypeError("unsupported operand type(s)")
        return view(ledger, *args, **words)

    monkeypatch.setattr(Ledger, "view", viewed)


@pytest.mark.usefixtures("two_pipelines")
def test_in_metrics(tidegate: Any) -> None:
    said = tidegate("metrics")
    assert said.code == 3
    found = parsed(said.out)
    assert [found["readable", (("pipeline", name),)] for name in ("orders", "broken")] == [1, 0]
    assert "unsupported operand" in said.err
    assert "tidegate metrics broken --debug" in said.err


@pytest.mark.usefixtures("two_pipelines")
def test_in_the_list(tidegate: Any) -> None:
    listed = tidegate("list", "--json").json["pipelines"]
    assert [(each["name"], each["state"]) for each in listed] == [("broken", "error"), ("orders", "completed")]


@pytest.mark.usefixtures("two_pipelines")
def test_in_doctor(tidegate: Any) -> None:
    found = tidegate("doctor", "--json").json["findings"]
    about = {area: [each for each in found if each["area"] == area] for area in ("broken", "orders")}
    assert [each["check"] for each in about["broken"] if each["state"] == "bad"] == ["doctor"]
    assert ("ledger", "ok") in [(each["check"], each["state"]) for each in about["orders"]]
