"""What pyspark is told, so that it need not ask."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
from pyspark.errors import utils

from tidegate.spark.known import name_callers_quickly


@pytest.fixture
def pysparks_own(monkeypatch: pytest.MonkeyPatch) -> Any:
    own = utils._capture_call_site
    monkeypatch.setattr(utils, "_capture_call_site", own)  # put back afterwards
    return own


@pytest.mark.skipif(importlib.util.find_spec("IPython") is not None, reason="pyspark's own way stays")
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_callers_are_named_as_pyspark_names_them(depth: int, pysparks_own: Any) -> None:
    name_callers_quickly()
    assert utils._capture_call_site is not pysparks_own
    quickly, as_before = [name(depth) for name in (utils._capture_call_site, pysparks_own)]
    assert quickly == as_before
    assert "IPython" not in sys.modules, "pandas takes that for an IPython that is there"


def test_with_ipython_nothing_changes(pysparks_own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    name_callers_quickly()
    assert utils._capture_call_site is pysparks_own
