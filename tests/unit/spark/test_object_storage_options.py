"""storage_options log in once, for obstore, delta-rs and Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate.config import load_settings
from tidegate.records import airflow_login
from tidegate.spark.conf import SparkSettings, properties, server_conf
from tidegate.spark.server.server import LOGIN, environment, identity
from tidegate.spark.session import spark_settings
from tidegate.spark.storage.object_storage import hadoop_options
from tidegate.spark.submit import DriverRequest, prepared


def test_without_options_only_the_scheme_is_known_and_the_login_is_the_environments(tmp_path: Path) -> None:
    assert hadoop_options({}) == {}
    assert server_conf(SparkSettings(), tmp_path)["spark.hadoop.fs.s3.impl"].endswith("S3AFileSystem")


def test_each_spelling_that_the_other_libraries_take_reaches_spark() -> None:
    assert hadoop_options(
        {"AWS_ACCESS_KEY_ID": "me", "secret_access_key": "s", "aws_token": "t", "aws_default_region": "r"}
    ) == {
        "spark.hadoop.fs.s3a.access.key": "me",
        "spark.hadoop.fs.s3a.secret.key": "s",
        "spark.hadoop.fs.s3a.session.token": "t",
        "spark.hadoop.fs.s3a.endpoint.region": "r",
    }


def test_a_store_of_ones_own_is_asked_by_path_unless_it_has_names_for_buckets() -> None:
    plain = hadoop_options({"aws_endpoint_url": "http://store:9000"})
    assert plain["spark.hadoop.fs.s3a.endpoint"] == "http://store:9000"
    assert plain["spark.hadoop.fs.s3a.path.style.access"] == "true"
    named = hadoop_options({"aws_endpoint": "https://store", "aws_virtual_hosted_style_request": "TRUE"})
    assert named["spark.hadoop.fs.s3a.path.style.access"] == "false"


def test_spark_looks_for_the_store_where_the_environment_says_as_the_others_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    monkeypatch.setenv("AWS_REGION", "here")
    settings = load_settings({"storage_options.aws_region": "there"}, env={}, start=tmp_path)
    conf = spark_settings(settings).conf
    assert conf["spark.hadoop.fs.s3a.endpoint"] == "http://store:9000"
    assert conf["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert conf["spark.hadoop.fs.s3a.endpoint.region"] == "there", "storage_options come first"


def test_a_login_from_airflow_reaches_spark_by_its_environment_and_is_in_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(airflow_login, "_ask", None)

    def made(password: str, **given: str) -> SparkSettings:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", f"aws://key:{password}@/?region_name=here")
        return spark_settings(load_settings({"storage": "airflow:lake", **given}, env={}, start=tmp_path))

    settings = made("canary")
    assert settings.login == {
        "spark.hadoop.fs.s3a.access.key": "key",
        "spark.hadoop.fs.s3a.secret.key": "canary",
        "spark.hadoop.fs.s3a.endpoint.region": "here",
    }
    assert "canary" not in properties(server_conf(settings, tmp_path)) + repr(settings)
    assert environment(settings)[LOGIN] == properties(settings.login)
    assert identity(made("canary")) == identity(settings)
    assert identity(made("another")) != identity(settings), "a server keeps the login with which it began"
    own = made("canary", **{"spark.conf.spark.hadoop.fs.s3a.endpoint.region": "mine"})
    assert own.conf["spark.hadoop.fs.s3a.endpoint.region"] == "mine"
    assert "spark.hadoop.fs.s3a.endpoint.region" not in own.login, "what Spark is told itself comes first"


def test_a_driver_that_looks_a_login_up_by_itself_is_not_given_it(tmp_path: Path) -> None:
    settings = SparkSettings(mode="submit", login={"spark.hadoop.fs.s3a.secret.key": "canary"})
    request = DriverRequest(
        pipeline="shop", declared_in=[], project=str(tmp_path), checkpoint=1, job="main", python_path=[]
    )
    with prepared(settings, request) as submission:
        assert "canary" not in repr(submission.environment)


def test_no_login_is_passed_on_to_a_spark_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOGIN, "spark.hadoop.fs.s3a.secret.key=canary")
    assert LOGIN not in environment(SparkSettings())


def test_spark_shows_no_login_of_a_store_where_it_shows_its_settings(tmp_path: Path) -> None:
    shown = re.compile(server_conf(SparkSettings(), tmp_path)["spark.redaction.regex"])
    azure = {"azure_account_name": "shop", "azure_account_key": "k"}
    token = {"azure_account_name": "shop", "azure_sas_token": "sv=1"}
    amazon = {"aws_access_key_id": "me", "aws_secret_access_key": "s", "aws_session_token": "t"}
    for login in (azure, token, amazon):
        secret = {name for name in hadoop_options(login) if "auth.type" not in name}
        assert [name for name in secret if not shown.search(name)] == []


def test_a_public_bucket_needs_no_login() -> None:
    assert "Anonymous" in hadoop_options({"aws_skip_signature": "true"})["spark.hadoop.fs.s3a.aws.credentials.provider"]


def test_an_account_of_azure_is_known_by_its_key_its_token_or_its_client() -> None:
    host = "shop.dfs.core.windows.net"
    assert hadoop_options({"azure_storage_account_name": "shop", "azure_storage_account_key": "k"}) == {
        f"spark.hadoop.fs.azure.account.key.{host}": "k"
    }
    assert hadoop_options({"AZURE_STORAGE_ACCOUNT_NAME": "shop", "azure_storage_sas_key": "sv=1&sig=x"}) == {
        f"spark.hadoop.fs.azure.account.auth.type.{host}": "SAS",
        f"spark.hadoop.fs.azure.sas.fixed.token.{host}": "sv=1&sig=x",
    }
    login = {"azure_client_id": "me", "azure_client_secret": "s", "azure_tenant_id": "t"}
    by_client = hadoop_options({"azure_account_name": "shop", **login})
    assert by_client[f"spark.hadoop.fs.azure.account.oauth2.client.endpoint.{host}"] == (
        "https://login.microsoftonline.com/t/oauth2/token"
    )
    assert by_client[f"spark.hadoop.fs.azure.account.oauth2.client.secret.{host}"] == "s"
    assert hadoop_options(login) == {}, "without an account nothing says whose it is; and it is no login of S3"


def test_a_key_file_of_google_reaches_its_connector() -> None:
    assert hadoop_options({"google_service_account": "/run/secrets/key.json"}) == {
        "spark.hadoop.fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "spark.hadoop.fs.gs.auth.service.account.json.keyfile": "/run/secrets/key.json",
    }


def test_the_login_is_part_of_the_servers_configuration_and_spark_conf_overrides_it(tmp_path: Path) -> None:
    settings = load_settings(
        {
            "storage_options.aws_access_key_id": "me",
            "storage_options.aws_secret_access_key": "canary",
            "spark.conf.spark.hadoop.fs.s3a.access.key": "another",
        }
    )
    conf = server_conf(spark_settings(settings), tmp_path)
    assert conf["spark.hadoop.fs.s3a.secret.key"] == "canary"
    assert conf["spark.hadoop.fs.s3a.access.key"] == "another"
    assert "canary" not in repr(settings) + repr(spark_settings(settings))


def test_a_server_of_others_has_its_own_login() -> None:
    settings = load_settings(
        {"storage_options.aws_access_key_id": "me", "spark.remote": "sc://localhost:15002", "spark.mode": "connect"}
    )
    assert dict(spark_settings(settings).conf) == {}
