"""What pyspark is told, so that it need not ask."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from pyspark.errors import utils
from pyspark.sql.types import LongType, StructField, StructType

from tidegate.spark.frame_facts import fields_before, like_before, name_callers_quickly, with_callers, without_callers


@pytest.fixture
def pysparks_own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As it is before anybody connects: an earlier test of this process may have done so."""
    spec = importlib.util.spec_from_file_location("pysparks_own_utils", str(utils.__file__))
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    monkeypatch.setattr(utils, "_capture_call_site", fresh._capture_call_site)  # put back afterwards
    return fresh._capture_call_site


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


class Session:
    """Stands for one."""


class Frame:
    """A frame of Spark Connect, as far as its columns are concerned."""

    def __init__(self, session: Session) -> None:
        self.sparkSession = session
        self._cached_schema: StructType | None = None

    @property
    def known(self) -> list[str] | None:
        return None if self._cached_schema is None else self._cached_schema.names


def test_columns_that_somebody_has_asked_for_are_known_of_the_next_one_of_that_shape_and_session() -> None:
    session = Session()

    def frame(shape: str = "orders", session: Session = session) -> Frame:
        made = Frame(session)
        assert like_before(cast(Any, made), shape) is cast(Any, made)
        return made

    assert frame().known is None
    second = frame()
    assert second.known is None, "nobody has asked"
    second._cached_schema = StructType([StructField("id", LongType())])
    assert frame().known == ["id"]
    assert frame().known == ["id"]
    assert frame("payments").known is None
    assert frame(session=Session()).known is None


def test_columns_are_asked_for_once_for_each_shape_and_session() -> None:
    session, asked = Session(), []

    class Counted:
        @property
        def schema(self) -> StructType:
            asked.append(1)
            return StructType([StructField("id", LongType())])

    def made() -> Any:
        return Counted()

    for _ in range(3):
        assert [field.name for field in fields_before(cast(Any, session), "orders", made)] == ["id"]
    assert len(asked) == 1
    fields_before(cast(Any, session), "payments", made)
    fields_before(cast(Any, Session()), "orders", made)
    assert len(asked) == 3


def test_lines_are_noted_of_what_users_write_and_not_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "is_debugging_enabled", utils.is_debugging_enabled)  # put back afterwards
    monkeypatch.setattr(utils, "_enable_debugging_cache", True)

    def noted() -> bool:
        return utils.is_debugging_enabled()

    with ThreadPoolExecutor(1) as elsewhere, without_callers():
        assert not noted()
        assert elsewhere.submit(noted).result(), "another thread may be at a user's code"
        with with_callers():
            assert noted()
        with pytest.raises(KeyError), with_callers():
            raise KeyError
        assert not noted()
    assert noted()
    monkeypatch.setattr(utils, "_enable_debugging_cache", False)
    with without_callers(), with_callers():
        assert not noted(), "pyspark's setting counts"
