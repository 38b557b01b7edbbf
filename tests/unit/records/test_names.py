"""Names become folders, table tags and SQL identifiers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Invalid
from tidegate.records.names import RUN_LIMIT, check_name, check_run, entry_id, entry_name, run_key

GOOD = ["a", "0", "a1", "a-b_c", "orders", "9lives", "a" * 63, "x--", "x__"]
BAD = [
    *(
        "",
        " ",
        "A",
        "Orders",
        "a b",
        "a.b",
        "a/b",
        "../a",
        "..",
        ".",
        "/a",
        "a/",
        "-a",
        "_a",
        ".a",
        "a\n",
        "\na",
        "a\0",
    ),
    *(
        "ä",
        "ａ",
        "а",
        "１",
        "a\u0301",
        "a\u200b",
        "\u202ea",
        "a" * 64,
        "a\\b",
        "a:b",
        "~",
        "$HOME",
        "%2e%2e",
        "con.json",
    ),
    *(None, 1, 1.5, True, b"a", ["a"], {"a": 1}, object),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_plain_name_is_returned_as_it_is(name):
    assert check_name("sink", name) is name


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_anything_else_is_refused_with_the_name_and_the_rule(name):
    with pytest.raises(Invalid) as caught:
        check_name("sink", name)
    assert caught.value.what == f"sink name {name!r} is not allowed"
    assert "lower-case" in caught.value.expected
    assert "rename the sink" in caught.value.help


@given(st.integers(1, 10**17))
def test_an_entry_folder_stands_for_its_id_and_no_other(id):
    assert entry_id(entry_name(id)) == id


@given(st.integers(1, 10**8 - 1), st.integers(1, 10**8 - 1))
def test_folder_names_sort_as_ids_do(one, other):
    assert (entry_name(one) < entry_name(other)) == (one < other)


@pytest.mark.parametrize(
    "name",
    [
        "1",
        "0000001",
        "000000010",
        "0000000a",
        "00000001 ",
        " 0000001",
        "-0000001",
        "00000001.tmp",
        "",
        "٠٠٠٠٠٠٠١",
        "9" * 400,
    ],
)
def test_other_folders_are_no_entries(name):
    assert entry_id(name) is None


@pytest.mark.parametrize(
    "run", ["../../etc/passwd", "a/b", "manual__2026-03-01T00:00:00+00:00", "ü" * 300, "a\nb\0c", ".", "x" * RUN_LIMIT]
)
def test_a_run_id_is_hashed_whatever_it_holds(run):
    assert check_run(run) == run
    assert len(run_key(run)) == 64
    assert set(run_key(run)) <= set("0123456789abcdef")


def test_run_ids_that_are_prefixes_of_one_another_have_nothing_in_common():
    """Scenario 18."""
    keys = [run_key(run) for run in ("a", "a1", "a10", "A", "a ", "1", "10")]
    assert len(set(keys)) == len(keys)
    assert not any(one != other and one.startswith(other[:8]) for one in keys for other in keys)


@pytest.mark.parametrize(
    "run", ["", "  ", "x" * (RUN_LIMIT + 1), "\ud800", None, 5, b"x"], ids=lambda run: repr(run)[:12]
)
def test_what_is_no_run_id_is_refused(run):
    with pytest.raises(Invalid) as caught:
        check_run(run)
    assert caught.value.reason == "BAD_RUN"
    assert repr(run)[:50] in caught.value.what
    assert caught.value.help
