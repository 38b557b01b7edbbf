"""Object stores for Spark: the login and address of the setting `storage_options`, under Hadoop's names.

obstore and delta-rs use `storage_options` as they are; Spark uses Hadoop, which has different names. If they contain no
login, both find it in the usual places: the environment, or the machine's role. Hadoop does not find the address of a
custom store there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FILE_SYSTEMS", "address_in", "hadoop_options"]

FILE_SYSTEMS: Final = {
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
}
"""Hadoop only knows the file system as s3a://. All other tools use s3://."""

_NAMES: Final = {
    "fs.s3a.access.key": ("access_key_id",),
    "fs.s3a.secret.key": ("secret_access_key",),
    "fs.s3a.session.token": ("session_token", "token"),
    "fs.s3a.endpoint": ("endpoint", "endpoint_url"),
    "fs.s3a.endpoint.region": ("region", "default_region"),
}
"""Hadoop's names, with those of storage_options without `aws_`."""
_ADDRESS: Final = {
    "aws_endpoint": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
"""Variables that obstore and delta-rs read from the environment, besides the login."""
_OTHERS: Final = ("azure_", "google_")
_BY_CLIENT: Final = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
_ANONYMOUS: Final = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"


def hadoop_options(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's configuration for the stores in `storage_options`: S3, Azure, Google."""
    options = {name.lower(): value for name, value in storage_options.items()}
    hadoop = _of_s3(options) | _of_azure(options) | _of_google(options)
    return {f"spark.hadoop.{name}": value for name, value in hadoop.items()}


def address_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the S3 store's address and region from the environment, under the names of storage_options."""
    address = {option: _first(environment, *names) for option, names in _ADDRESS.items()}
    return {option: value for option, value in address.items() if value is not None}


def _of_s3(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.removeprefix("aws_"): value for name, value in options.items() if not name.startswith(_OTHERS)}
    of_hadoop = {}
    for name, ours in _NAMES.items():
        if value := _first(given, *ours):
            of_hadoop[name] = value
    if "fs.s3a.endpoint" in of_hadoop:
        by_host = given.get("virtual_hosted_style_request", "").lower() == "true"
        of_hadoop["fs.s3a.path.style.access"] = "false" if by_host else "true"
    if given.get("skip_signature", "").lower() == "true":
        of_hadoop["fs.s3a.aws.credentials.provider"] = _ANONYMOUS
    return of_hadoop


def _of_azure(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of one account, so that Spark keeps its logins for other accounts."""
    given = {}
    for name, value in options.items():
        if name.startswith("azure_"):
            given[name.removeprefix("azure_").removeprefix("storage_")] = value
    account = given.get("account_name")
    if account is None:
        return {}
    host = f"{account}.dfs.core.windows.net"
    if key := _first(given, "account_key", "access_key", "master_key"):
        return {f"fs.azure.account.key.{host}": key}
    if token := _first(given, "sas_key", "sas_token"):
        return {f"fs.azure.account.auth.type.{host}": "SAS", f"fs.azure.sas.fixed.token.{host}": token}
    tenant = _first(given, "tenant_id", "authority_id", "client_tenant_id")
    if (client := given.get("client_id")) and (secret := given.get("client_secret")) and tenant:
        authority = given.get("authority_host", "https://login.microsoftonline.com").rstrip("/")
        return {
            f"fs.azure.account.auth.type.{host}": "OAuth",
            f"fs.azure.account.oauth.provider.type.{host}": _BY_CLIENT,
            f"fs.azure.account.oauth2.client.id.{host}": client,
            f"fs.azure.account.oauth2.client.secret.{host}": secret,
            f"fs.azure.account.oauth2.client.endpoint.{host}": f"{authority}/{tenant}/oauth2/token",
        }
    return {}


def _of_google(options: Mapping[str, str]) -> dict[str, str]:
    """Return the path of a key file. The connector does not accept a key itself, which must be in the usual place."""
    given = {}
    for name, value in options.items():
        if name.startswith("google_"):
            given[name.removeprefix("google_")] = value
    path = _first(given, "service_account", "service_account_path", "application_credentials")
    if path is None:
        return {}
    return {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "fs.gs.auth.service.account.json.keyfile": path}


def _first(given: Mapping[str, str], *names: str) -> str | None:
    return next((given[name] for name in names if given.get(name)), None)
