"""Where data lies: one table has one name."""

import pytest

from tidegate.errors import Invalid
from tidegate.records.place import Place, is_url, local_path


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("tables/a", "/data/tables/a"),
        ("tables/a/", "/data/tables/a"),
        ("./tables//a", "/data/tables/a"),
        ("tables/b/../a", "/data/tables/a"),
        ("/data/tables/a", "/data/tables/a"),
        ("file:///data/tables/a", "/data/tables/a"),
        ("FILE:///data/tables/a/", "/data/tables/a"),
        ("../data/tables/a", "/data/tables/a"),
        ("tables/ü ö", "/data/tables/ü ö"),
        ("s3://bucket/x/", "s3://bucket/x"),
        ("S3://bucket/x", "S3://bucket/x"),
        ("abfss://c@acct.dfs.core.windows.net/x", "abfss://c@acct.dfs.core.windows.net/x"),
    ],
)
def test_every_way_to_write_a_path_gives_one_address(path, url):
    assert Place("/data").url(path) == url


@pytest.mark.parametrize(
    ("path", "url"),
    [("x", "s3://b/p/x"), ("x/", "s3://b/p/x"), ("/x", "/x"), ("file:///x", "/x"), ("gs://c/x", "gs://c/x")],
)
def test_below_a_bucket_relative_paths_stay_in_the_bucket(path, url):
    assert Place("s3://b/p/").url(path) == url


@pytest.mark.parametrize("path", ["", " ", "a\0b", "a\nb", "file://", "file://host/x", "file://x", None, 5], ids=repr)
def test_a_path_that_no_file_can_have_is_refused(path):
    with pytest.raises(Invalid) as caught:
        Place("/data").url(path)
    assert repr(path) in caught.value.what
    assert caught.value.expected


def test_upper_case_schemes_are_no_local_folders():
    assert is_url("S3://b")
    assert not is_url("FILE:///b")
    assert local_path("File:///b") == "/b"


@pytest.mark.parametrize("login", ["s3://user:hunter2@b/t", "abfss://c@a.dfs.core.windows.net/t?sv=1&sig=hunter2"])
def test_an_address_holds_no_login(login):
    """It would be in every plan, ack and page that names the table."""
    with pytest.raises(Invalid, match="storage_options|not usable") as refused:
        Place("/data").url(login)
    assert "hunter2" not in str(refused.value)
    assert Place("/data").url("abfss://c@a.dfs.core.windows.net/t") == "abfss://c@a.dfs.core.windows.net/t"
    assert Place("/data").url("s3://b/day=2026-01-0?/*.json") == "s3://b/day=2026-01-0?/*.json"


def test_storage_options_are_never_shown():
    place = Place("s3://b", {"aws_secret_access_key": "hunter2-canary"})
    assert "hunter2" not in repr(place) + str(place)
