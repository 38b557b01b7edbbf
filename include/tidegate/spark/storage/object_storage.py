"""Object stores for Spark: the login and address of the setting `storage_options`, by Hadoop's names.

obstore and delta-rs take `storage_options` as they are; Spark reads and writes through Hadoop, which has its own names.
What is not in there, both find where their store's tools look: in the environment, or in the machine's role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["FILE_SYSTEMS", "hadoop_options"]

FILE_SYSTEMS: Final = {
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
}
"""Hadoop knows the file system by s3a:// only. Everybody else writes s3://."""

_NAMES: Final = {
    "fs.s3a.access.key": ("access_key_id",),
    "fs.s3a.secret.key": ("secret_access_key",),
    "fs.s3a.session.token": ("session_token", "token"),
    "fs.s3a.endpoint": ("endpoint", "endpoint_url"),
    "fs.s3a.endpoint.region": ("region", "default_region"),
}
"""Hadoop's names, and those of storage_options, without `aws_`."""
_ANONYMOUS: Final = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"


def hadoop_options(storage_options: Mapping[str, str]) -> dict[str, str]:
    """Return what Spark's configuration needs for stores that `storage_options` leads to."""
    given = {name.lower().removeprefix("aws_"): value for name, value in storage_options.items()}
    options = {}
    for name, ours in _NAMES.items():
        if value := next((given[each] for each in ours if given.get(each)), None):
            options[name] = value
    if "fs.s3a.endpoint" in options:
        by_host = given.get("virtual_hosted_style_request", "").lower() == "true"
        options["fs.s3a.path.style.access"] = "false" if by_host else "true"
    if given.get("skip_signature", "").lower() == "true":
        options["fs.s3a.aws.credentials.provider"] = _ANONYMOUS
    return {f"spark.hadoop.{name}": value for name, value in options.items()}
