"""A plan meets every file that ever landed: what is done in bulk gives what was done file by file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.sources import files, names, put
from tidegate.connectors.files import consumed
from tidegate.connectors.files.consumed import ConsumedFiles
from tidegate.connectors.files.folder import TEMPORARY, Pattern, is_ignored, open_folder
from tidegate.records.place import Place
from tidegate.sources import SourceContext
from tidegate.testing.source_contract import MemoryBlobs

digest = st.binary(min_size=16, max_size=16) | st.binary(max_size=2).map(lambda start: start.ljust(16, b"\0"))


@settings(deadline=None)
@given(st.sets(digest, min_size=1), st.lists(digest))
def test_many_digests_are_looked_up_as_a_few_are(segment: set[bytes], wanted: list[bytes]) -> None:
    data = b"".join(sorted(segment))
    asked = [*wanted, *segment, *(each[:15] + b"\0" for each in segment)]
    assert consumed._contained_of_many(asked, data) == [each in segment for each in asked]


@pytest.mark.parametrize("many", [1, 1 << 16], ids=["with numpy", "without"])
def test_what_lands_late_is_found_among_many_that_were_read(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    monkeypatch.setattr(consumed, "MIN_NAMES_FOR_NUMPY", many)
    blobs, landed = MemoryBlobs(), [f"orders-{number * 7919 % 5000:05d}.json" for number in range(5000)]
    seen = ConsumedFiles([], blobs).write_with(landed[:4000])
    seen = ConsumedFiles(seen, blobs).write_with(landed[4001:4999])
    assert ConsumedFiles(seen, blobs).missing(landed) == [landed[4000], landed[4999]]
    assert ConsumedFiles(seen, blobs).missing(landed[4000:4001]) == [landed[4000]]


letters = st.sampled_from(["a", ".", "_", "T", "mp", "tmp", "CRC", ".inprogress", "._COPYING_", "\n", "ſ", "K"])


@settings(deadline=None, max_examples=50)
@given(st.sets(st.lists(letters, min_size=1, max_size=4).map("".join).filter(lambda name: name not in (".", ".."))))
def test_exactly_the_names_that_are_not_ignored_are_found(tmp_path_factory: pytest.TempPathFactory, landed) -> None:
    root = tmp_path_factory.mktemp("landing")
    for name in landed:
        (root / name).touch()
    found = open_folder(Place(str(root)), ".").names(Pattern.parse("*"))
    assert sorted(found) == sorted(name for name in landed if not is_ignored(name))


def test_every_temporary_ending_is_ignored_in_any_case(tmp_path: Path) -> None:
    for ending in TEMPORARY:
        (tmp_path / f"x{ending}").touch()
        (tmp_path / f"x{ending.upper()}").touch()
    (tmp_path / "x").touch()
    assert open_folder(Place(str(tmp_path)), ".").names(Pattern.parse("*")) == ["x"]


def test_a_file_that_globs_find_twice_is_planned_once(tmp_path: Path) -> None:
    put(tmp_path / "landing/a/b/c", ["x.json"])
    context = SourceContext("shop", "orders", Place(str(tmp_path)), MemoryBlobs())
    planned = files(pattern="landing/**/b/**/*.json").plan(None, context)
    assert names(planned) == ["a/b/c/x.json"]


def test_a_link_that_leads_out_is_refused_even_if_it_was_read_as_a_file(tmp_path: Path) -> None:
    put(tmp_path / "landing", ["x.json"])
    put(tmp_path / "elsewhere", ["y.json"])
    context = SourceContext("shop", "orders", Place(str(tmp_path)), MemoryBlobs())
    planned = files().plan(None, context)
    (tmp_path / "landing/x.json").unlink()
    (tmp_path / "landing/x.json").symlink_to(tmp_path / "elsewhere/y.json")
    with pytest.raises(Exception, match="lead out of the folder"):
        files().plan(planned.end, context)
