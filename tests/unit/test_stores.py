"""One client for each bucket and login, whatever lies in it; and objects are deleted by few requests."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import pytest

from tidegate.delta.files.access import _bucket, unavailable
from tidegate.errors import Invalid
from tidegate.stores import bucket_client, delete_objects, open_client, polling_pause

LOGIN = {"aws_access_key_id": "me", "aws_secret_access_key": "canary", "aws_region": "r"}


def test_all_tables_of_a_bucket_share_a_client_and_another_login_has_its_own() -> None:
    client, path = bucket_client("s3://shop/a/rows", LOGIN)
    assert path == "a/rows"
    assert bucket_client("s3://shop/b/", LOGIN) == (client, "b")
    assert bucket_client("s3://shop/a/rows", LOGIN | {"aws_access_key_id": "you"})[0] is not client
    assert bucket_client("s3://other/a/rows", LOGIN)[0] is not client


def test_a_forked_process_opens_clients_of_its_own() -> None:
    """Airflow forks each task: a client that was used before hangs in the child forever."""
    client, file_system = bucket_client("s3://shop/a", LOGIN)[0], _bucket("s3://shop/a", LOGIN)[0]

    def has_its_own() -> bool:
        own = bucket_client("s3://shop/a", LOGIN)[0], _bucket("s3://shop/a", LOGIN)[0]
        return own[0] is not client and own[1] is not file_system

    assert not has_its_own()
    child = os.fork()
    if child == 0:
        os._exit(0 if has_its_own() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_option_that_only_delta_rs_knows_is_left_out_for_tables_and_refused_for_the_ledger() -> None:
    options = LOGIN | {"aws_s3_allow_unsafe_rename": "true"}
    assert bucket_client("s3://shop/a", options)[1] == "a"
    with pytest.raises(Invalid, match="aws_s3_allow_unsafe_rename") as refused:
        open_client("s3://shop/a", options)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("url", ["s3://shop/a", "abfss://c@acc.dfs.core.windows.net/a"])
def test_one_login_may_be_for_stores_of_several_kinds(url: str) -> None:
    azure = {
        "azure_storage_account_name": "acc",
        "azure_storage_account_key": "Y2FuYXJ5",
        "google_service_account": "k",
    }
    assert open_client(url, LOGIN | azure) is not None


def test_options_of_the_connection_are_taken_for_every_store() -> None:
    options = {"timeout": "5s", "connect_timeout": "2s", "proxy_url": "http://proxy:3128", "aws_allow_http": "true"}
    told = open_client("s3://shop/a", LOGIN | options).client_options
    assert told["timeout"] == "5s"
    assert told["proxy_url"] == "http://proxy:3128"
    assert told["allow_http"] in (True, "true")


def test_an_address_without_tls_is_refused_unless_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    options = LOGIN | {"aws_endpoint": "http://minio:9000"}
    with pytest.raises(Invalid, match="allow_http"):
        open_client("s3://shop/a", options)
    assert open_client("s3://shop/a", options | {"allow_http": "true"}) is not None
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert open_client("s3://shop/a", options).client_options["allow_http"] in (True, "true")


def test_who_waits_long_looks_into_a_bucket_less_often_and_on_a_disk_as_before() -> None:
    waited = [0.0]
    while waited[-1] < 3600:
        waited.append(waited[-1] + polling_pause("s3://shop/ledger", waited[-1], 0.5))
    late = max(after - before - before / 5 for before, after in itertools.pairwise(waited))
    assert late <= 0.5, "a fifth of what it took"
    assert len(waited) < 3600 / 4.5, "and not twice a second"
    assert polling_pause("/disk/ledger", 3600.0, 0.5) == 0.5


class Client:
    """A store that minds missing objects if it is `strict`, and stops there."""

    def __init__(self, *paths: str, strict: bool) -> None:
        self.objects = set(paths)
        self.strict = strict
        self.requests = 0

    def delete(self, paths: str | Sequence[str]) -> None:
        self.requests += 1
        for path in [paths] if isinstance(paths, str) else paths:
            if self.strict and path not in self.objects:
                raise FileNotFoundError(path)
            self.objects.discard(path)


def test_several_objects_are_deleted_by_one_request() -> None:
    client = Client("a", "b", "c", strict=False)
    delete_objects(client, ["a", "missing", "b"])
    assert (client.objects, client.requests) == ({"c"}, 1)
    delete_objects(client, [])
    assert client.requests == 1


def test_a_missing_one_keeps_none_of_the_others_from_being_deleted() -> None:
    client = Client("a", "b", "c", strict=True)
    delete_objects(client, ["a", "missing", "b"])
    assert client.objects == {"c"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("Generic S3 error: 403 Forbidden: <Code>AccessDenied</Code>", "refuses this login"),
        ("the request failed: <Code>ExpiredToken</Code>", "the login has expired"),
        ("error sending request: connection refused", "did not answer"),
    ],
)
def test_a_table_s_store_that_refuses_a_login_is_not_one_that_is_away(answer: str, told: str) -> None:
    error = unavailable("s3://shop/tables/orders", OSError(answer))
    assert told in str(error)
    assert "the next attempt" in error.help
