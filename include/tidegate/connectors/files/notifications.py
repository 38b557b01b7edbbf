"""Notifications of a bucket through an SQS queue: they wake the process that watches a pipeline's sources.

They only save listings. What a checkpoint reads is planned by listing, so a lost or doubled message does no harm, and a
message may be deleted as soon as it has been received.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from tidegate import seams
from tidegate.errors import Invalid, TidegateError, Unavailable

__all__ = ["SqsQueue", "queue_problems"]

_LONGEST_POLL_S: Final = 20
"""The longest that SQS lets a request wait for a message."""
_BATCH: Final = 10
_MAX_BATCHES: Final = 50
"""How many batches of a burst are received for one look."""
_REGION: Final = re.compile(r"sqs\.([a-z0-9-]+)\.")
_LOGIN: Final = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}
_LOGIN_OF_SESSION: Final = {"session_token": "aws_session_token", "token": "aws_session_token"}


class SqsQueue:
    """A queue that receives a message for each new object of a bucket.

    options: the storage options of the bucket. Without a key in them, boto3 finds the login, as the AWS CLI does.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """Raise Invalid if boto3 is not installed, or if no region is known."""
        self.url = url
        self._client = _client(url, options)

    def wait(self, seconds: float) -> bool:
        """Wait for a message for up to this long, and delete all that have come. Return whether any has.

        Raise Invalid or Unavailable if the queue cannot be read.
        """
        end = seams.monotonic() + seconds
        while True:
            left_s = max(0, min(_LONGEST_POLL_S, round(end - seams.monotonic())))
            if self._receive(left_s):
                for _ in range(_MAX_BATCHES):
                    if not self._receive(0):
                        break
                return True
            if seams.monotonic() >= end - 0.5:
                return False

    def _receive(self, wait_s: int) -> bool:
        """Receive some messages and delete them. Return whether there were any."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = self._client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=_BATCH, WaitTimeSeconds=wait_s)
            messages = answer.get("Messages", [])
            if messages:
                entries = []
                for place, message in enumerate(messages):
                    entries.append({"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]})
                self._client.delete_message_batch(QueueUrl=self.url, Entries=entries)
            return bool(messages)
        except (BotoCoreError, ClientError) as error:
            raise self._explained(error) from None

    def _explained(self, error: Exception) -> TidegateError:
        response = getattr(error, "response", {})
        code = str(response.get("Error", {}).get("Code", "")) or type(error).__name__
        if "NonExistentQueue" in code or "QueueDoesNotExist" in code:
            return Invalid(
                f"there is no queue {self.url}",
                expected="the URL of an SQS queue in its own region and account",
                help="correct the argument `queue`: `aws sqs get-queue-url --queue-name NAME` prints the URL",
                reason="NO_QUEUE",
            )
        if "AccessDenied" in code or "InvalidClientTokenId" in code or "Credentials" in code or "Signature" in code:
            return Invalid(
                f"the queue {self.url} refuses this login: {code}",
                expected="the rights sqs:ReceiveMessage and sqs:DeleteMessage",
                help="grant them to the login of storage_options, or of the environment",
                reason="QUEUE_NOT_ALLOWED",
            )
        return Unavailable(
            f"the queue {self.url} does not answer: {code}",
            help="check its URL and region; until it answers, the bucket is listed instead",
            reason="QUEUE_AWAY",
        )


def queue_problems(url: object) -> list[str]:
    """Return all problems of the argument `queue`."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("https", "http") or not parts.netloc or parts.path.count("/") < 2:
        return [f"queue is {url!r}; it must be a queue's URL: https://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE"]
    if "@" in parts.netloc:
        return ["queue contains a login; put it into the setting storage_options"]
    return []


def _client(url: str, options: Mapping[str, str]) -> Any:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise Invalid(
            "boto3, with which tidegate receives messages of SQS, is not installed",
            help="pip install 'tidegate[sqs]'",
            reason="NO_SQS_CLIENT",
        ) from None
    known = {name.lower().removeprefix("aws_"): text for name, text in options.items()}
    login = {given: known[name] for name, given in {**_LOGIN, **_LOGIN_OF_SESSION}.items() if name in known}
    in_url = _REGION.search(url)
    region = in_url[1] if in_url else known.get("region") or known.get("default_region")
    parts = urlsplit(url)
    config = Config(connect_timeout=5, read_timeout=_LONGEST_POLL_S + 10, retries={"total_max_attempts": 2})
    try:
        return boto3.client(
            "sqs", endpoint_url=f"{parts.scheme}://{parts.netloc}", region_name=region, config=config, **login
        )
    except (BotoCoreError, ValueError) as error:
        raise Invalid(
            f"the queue {url} cannot be opened: {error}",
            expected="a region: in the queue's URL, or as aws_region in storage_options",
            help="set aws_region in storage_options",
            reason="BAD_QUEUE",
        ) from None
