"""One client for each bucket and login, whatever lies in it."""

from __future__ import annotations

import pytest

from tidegate.errors import Invalid
from tidegate.stores import bucket_client, open_client

LOGIN = {"aws_access_key_id": "me", "aws_secret_access_key": "canary", "aws_region": "r"}


def test_all_tables_of_a_bucket_share_a_client_and_another_login_has_its_own() -> None:
    client, path = bucket_client("s3://shop/a/rows", LOGIN)
    assert path == "a/rows"
    assert bucket_client("s3://shop/b/", LOGIN) == (client, "b")
    assert bucket_client("s3://shop/a/rows", LOGIN | {"aws_access_key_id": "you"})[0] is not client
    assert bucket_client("s3://other/a/rows", LOGIN)[0] is not client


def test_an_option_that_only_delta_rs_knows_is_left_out_for_tables_and_refused_for_the_ledger() -> None:
    options = LOGIN | {"aws_s3_allow_unsafe_rename": "true"}
    assert bucket_client("s3://shop/a", options)[1] == "a"
    with pytest.raises(Invalid, match="aws_s3_allow_unsafe_rename") as refused:
        open_client("s3://shop/a", options)
    assert "canary" not in str(refused.value)
