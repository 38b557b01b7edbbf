"""Logins in Airflow's connections: what becomes of each type, where they are looked up, and that nobody sees them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.config import load_settings
from tidegate.connectors.postgres import Database
from tidegate.delta import locate, open_table
from tidegate.errors import Invalid, Unavailable
from tidegate.ledger.ledger import open_ledger
from tidegate.records import airflow_login
from tidegate.records.airflow_login import AirflowConnection, StorageLogin, login_variables
from tidegate.records.place import Place

EMPTY = dict.fromkeys(("host", "port", "login", "password", "schema", "extra"))
SECRET = "canary/with:odd@letters"
QUOTED = "canary%2Fwith%3Aodd%40letters"
URI = f"postgresql://ann:{QUOTED}@db.example.com:5433/sales?sslmode=require&cursor=dictcursor"


@pytest.fixture(autouse=True)
def outside_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_login, "_ask", None)


def given(**known: Any) -> AirflowConnection:
    return AirflowConnection.parsed("x", json.dumps(known))


# -- what becomes of each type ---------------------------------------------------------------------------


POSTGRES = {"host": "db.example.com", "port": "5433", "dbname": "sales", "user": "ann", "password": SECRET}


@pytest.mark.parametrize(
    "connection",
    [
        AirflowConnection.parsed("x", URI),
        given(
            conn_type="postgres",
            host="db.example.com",
            port=5433,
            schema="sales",
            login="ann",
            password=SECRET,
            extra={"sslmode": "require", "cursor": "dictcursor"},
        ),
        given(
            conn_type="postgres",
            host="db.example.com",
            port="5433",
            schema="sales",
            login="ann",
            password=SECRET,
            extra='{"sslmode": "require", "iam": false}',
        ),
    ],
    ids=["uri", "json", "extra as text"],
)
def test_a_database_is_reached_by_libpqs_options(connection: AirflowConnection):
    assert connection.options() == POSTGRES | {"sslmode": "require"}
    assert AirflowConnection.parsed("x", connection.as_variable).options() == POSTGRES | {"sslmode": "require"}


@pytest.mark.parametrize(
    ("connection", "options"),
    [
        (
            given(conn_type="kafka", extra={"bootstrap.servers": "a:1,b:2", "linger.ms": 5, "error_cb": "my.function"}),
            {"bootstrap.servers": "a:1,b:2", "linger.ms": "5"},
        ),
        (
            given(
                conn_type="kafka", host="broker", login="ann", password=SECRET, extra={"security.protocol": "sasl_ssl"}
            ),
            {
                "bootstrap.servers": "broker:9092",
                "sasl.username": "ann",
                "sasl.password": SECRET,
                "security.protocol": "sasl_ssl",
            },
        ),
        (given(conn_type="kafka", host="a:1,b:2"), {"bootstrap.servers": "a:1,b:2"}),
        (given(conn_type="kafka", host="a, b:2", port=9093), {"bootstrap.servers": "a:9093,b:2"}),
        (given(conn_type="generic", extra={"type": "rest", "ssl": True}), {"type": "rest", "ssl": "true"}),
    ],
)
def test_a_broker_and_others_are_reached_by_the_options_of_their_clients(
    connection: AirflowConnection, options: dict[str, str]
):
    assert connection.options() == options


@pytest.mark.parametrize(
    ("connection", "options"),
    [
        (
            AirflowConnection.parsed("x", f"aws://key:{QUOTED}@/?region_name=eu-central-1"),
            {"aws_access_key_id": "key", "aws_secret_access_key": SECRET, "aws_region": "eu-central-1"},
        ),
        (
            given(conn_type="aws", extra={"aws_session_token": "t", "endpoint_url": "http://minio:9000"}),
            {"aws_session_token": "t", "aws_endpoint": "http://minio:9000", "aws_allow_http": "true"},
        ),
        (
            given(conn_type="aws", extra={"service_config": {"s3": {"endpoint_url": "https://s3.example.com"}}}),
            {"aws_endpoint": "https://s3.example.com"},
        ),
        (given(conn_type="aws"), {}),
        (
            given(conn_type="wasb", login="account", password="key"),
            {"azure_account_name": "account", "azure_account_key": "key"},
        ),
        (
            given(
                conn_type="wasb",
                host="https://account.blob.core.windows.net",
                login="client",
                password="secret",
                extra={"extra__wasb__tenant_id": "tenant"},
            ),
            {
                "azure_account_name": "account",
                "azure_client_id": "client",
                "azure_client_secret": "secret",
                "azure_tenant_id": "tenant",
            },
        ),
        (
            given(conn_type="google_cloud_platform", extra={"key_path": "/key.json"}),
            {"google_service_account": "/key.json"},
        ),
        (
            given(conn_type="google-cloud-platform", extra={"keyfile_dict": {"a": 1}}),
            {"google_service_account_key": '{"a": 1}'},
        ),
        (given(conn_type="generic", extra={"aws_region": "x"}), {"aws_region": "x"}),
    ],
)
def test_a_store_is_reached_by_storage_options(connection: AirflowConnection, options: dict[str, str]):
    assert connection.storage_options() == options


@pytest.mark.parametrize(
    ("connection", "use", "told"),
    [
        (given(conn_type="aws"), "options", "'aws', is a login to a store"),
        (given(conn_type="kafka"), "storage_options", "'kafka', is not a login to a store"),
        (given(conn_type="aws", extra={"role_arn": "arn:x"}), "storage_options", "a login by role_arn"),
        (given(conn_type="aws", extra={"profile_name": "sales"}), "storage_options", "a login by profile_name"),
        (
            given(conn_type="wasb", extra={"extra__wasb__connection_string": "AccountKey=k"}),
            "storage_options",
            "a login by connection_string",
        ),
        (
            given(conn_type="google_cloud_platform", extra={"impersonation_chain": ["a@b"]}),
            "storage_options",
            "a login by impersonation_chain",
        ),
        (given(conn_type="postgres", extra={"iam": True}), "options", "a login by IAM"),
    ],
)
def test_what_a_connection_cannot_do_is_refused(connection: AirflowConnection, use: str, told: str):
    with pytest.raises(Invalid, match=told) as refused:
        getattr(connection, use)()
    assert refused.value.reason == "BAD_AIRFLOW_CONNECTION"


# -- where it is looked up -------------------------------------------------------------------------------


def test_outside_of_airflow_it_is_looked_up_in_airflows_variables_or_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
):
    place = Place("/data")
    with pytest.raises(Invalid, match="AIRFLOW_CONN_SHOP_DB is not set") as refused:
        place.connection("airflow:shop_db")
    assert refused.value.reason == "NO_AIRFLOW_CONNECTION"
    assert "set it, such as AIRFLOW_CONN_SHOP_DB='{" in refused.value.help
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", URI)
    assert place.connection("airflow:shop_db")["password"] == SECRET


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        "{canary",
        '{"host": "canary"}',
        '{"conn_type": "x", "extra": "canary"}',
        '{"conn_type": "x", "extra": ["canary"]}',
        '{"conn_type": "x", "extra": "7"}',
        "x://a:canary@b/?__extra__=%5B%22canary%22%5D",
        "x://a:canary@b:notaport/",
    ],
)
def test_a_variable_that_cannot_be_read_is_named_and_not_quoted(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", text)
    with pytest.raises(Invalid, match="AIRFLOW_CONN_SHOP_DB cannot be read") as refused:
        Place("/data").connection("airflow:shop_db")
    assert "canary" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("extra", ["sslmode=canary", '["canary"]', "7"])
def test_a_connection_of_airflow_with_an_extra_that_cannot_be_read_is_not_half_used(extra: str):
    """Its extra may hold the login: without it, the machine's own would count."""
    found = SimpleNamespace(**EMPTY | {"conn_type": "aws", "extra": extra})
    with pytest.raises(Invalid, match="the extra of Airflow's connection 'lake' cannot be read") as refused:
        AirflowConnection.from_airflow("lake", found)
    assert "canary" not in str(refused.value)


def test_a_login_that_a_database_does_not_take_is_to_be_corrected_in_airflow(monkeypatch: pytest.MonkeyPatch):
    text = json.dumps({"conn_type": "postgres", "host": "db", "password": SECRET, "extra": {"mood": "canary"}})
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", text)
    with pytest.raises(Invalid, match='invalid connection option "mood"') as refused:
        Database.resolve(Place("/data"), "airflow:shop_db").session("reading").__enter__()
    assert refused.value.help == "correct Airflow's connection 'shop_db'"
    assert "canary" not in str(refused.value)


def test_a_variable_that_no_shell_exports_is_told_with_how_to_set_it():
    with pytest.raises(Invalid, match=r"AIRFLOW_CONN_SHOP-DB.EU is not set") as refused:
        Place("/data").connection("airflow:shop-db.eu")
    assert "`env AIRFLOW_CONN_SHOP-DB.EU='{" in refused.value.help


def test_in_airflow_airflow_is_asked_even_if_a_variable_is_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", URI)
    asked: list[str] = []

    def nowhere(id: str) -> None:
        asked.append(id)

    monkeypatch.setattr(airflow_login, "_ask", nowhere)
    with pytest.raises(Unavailable, match="Airflow has no connection 'shop_db'"):
        Place("/data").connection("airflow:shop_db")
    assert asked == ["shop_db"]


def test_what_a_process_outside_of_airflow_needs_is_what_it_looks_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", URI)
    before = Place("/data").connection("airflow:shop_db")
    variables = login_variables(["airflow:shop_db"])
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert Place("/data").connection("airflow:shop_db") == before


@pytest.mark.parametrize(
    ("uri", "host", "port"),
    [
        (f"wasb://https://a%40b:{QUOTED}@lake.blob.core.windows.net", "https://lake.blob.core.windows.net", ""),
        (f"postgres://a%40b:{QUOTED}@%2Fcloudsql%2FShop%3Aeu:5433/", "/cloudsql/Shop:eu", "5433"),
        (f"generic://a%40b:{QUOTED}@one%2Ctwo/?at=https%3A%2F%2Felsewhere", "one,two", ""),
    ],
)
def test_a_host_may_be_whatever_airflow_exports(uri: str, host: str, port: str):
    found = AirflowConnection.parsed("x", uri)
    assert (found.host, found.port, found.login, found.password) == (host, port, "a@b", SECRET)


def test_two_connections_that_are_one_variable_elsewhere_are_not_taken_for_each_other(monkeypatch: pytest.MonkeyPatch):
    known = {"shop": "ann", "SHOP": "bob"}
    found = {id: SimpleNamespace(**EMPTY | {"conn_type": "postgres", "login": login}) for id, login in known.items()}
    monkeypatch.setattr(airflow_login, "_ask", found.get)
    with pytest.raises(Invalid, match="both AIRFLOW_CONN_SHOP outside of it"):
        login_variables(["airflow:SHOP", "airflow:shop"])


# -- the login of stores -----------------------------------------------------------------------------------


AWS = f"aws://key:{QUOTED}@/?region_name=eu-central-1"


def settings(folder: Path, **given: object) -> Any:
    return load_settings(code={"storage": "airflow:lake", **given}, env={}, start=folder)


def test_a_stores_login_is_looked_up_when_an_option_is_asked_for_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = settings(tmp_path, storage_options={"aws_region": "eu-west-1", "timeout": "10s"})
    place = found.place()
    repr(place), found.record(), found.display_rows()
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", AWS)
    assert dict(place.options) == {
        "aws_access_key_id": "key",
        "aws_secret_access_key": SECRET,
        "aws_region": "eu-west-1",
        "timeout": "10s",
    }, "the settings override it"
    assert place.options["aws_access_key_id"] == "key"
    assert type(copy.copy(place.options)) is dict, "as it is sent to a worker, which cannot ask"


def test_what_is_on_local_disk_needs_no_login(tmp_path: Path):
    found = settings(tmp_path, storage_options={"allow_unsafe_rename": "true"})
    ledger = open_ledger(found.root, "orders", found.storage_options)
    assert ledger.identity() is None
    assert open_table(locate(found.place(), "tables/orders")) is None
    assert dict(locate(found.place(), "tables/orders").options) == {"allow_unsafe_rename": "true"}


def test_a_stores_login_is_in_no_record_and_on_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", AWS)
    found = settings(tmp_path)
    assert dict(found.storage_options)
    told = f"{found!r} {found.record()} {found.display_rows()} {found.storage_options!r}"
    assert SECRET not in told
    assert "aws_access_key_id" not in told
    assert found.record()["storage"] == "airflow:lake"
    assert found.storage_options == StorageLogin("airflow:lake", {})


@pytest.mark.parametrize("wrong", ["lake", "airflow:", "airflow: lake", 7, "airflow:" + 251 * "x"])
def test_storage_names_a_connection_of_airflow(tmp_path: Path, wrong: object):
    with pytest.raises(Invalid, match='expected a connection of Airflow, "airflow:ID"'):
        settings(tmp_path, storage=wrong)
