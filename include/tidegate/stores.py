"""Clients of object stores: one for each bucket and login, which all in this process use.

A client does not survive a fork: in the child it would wait forever. So a forked process makes its own, and nothing is
opened at import.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import Invalid
from tidegate.records.place import is_url, store_of

__all__ = ["Refusal", "bucket_client", "delete_objects", "open_client", "polling_pause", "refusal_of"]

_OF_CLIENTS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "timeout",
        "user_agent",
    }
)
"""Options of the connection, for every store. delta-rs takes them among the store's own, obstore apart from those."""
_SWITCHES: Final = frozenset({"allow_http", "allow_invalid_certificates", "http1_only", "http2_only"})
_OF_STORES: Final = {"aws_": ("s3", "s3a"), "google_": ("gs",), "azure_": ("abfs", "abfss", "adl", "az", "azure")}
"""Prefixes of options, and the schemes of the stores that use them. One login may serve several stores."""
_ACCOUNT: Final = re.compile(r"(azure_)?(storage_)?account_name", re.IGNORECASE)
"""Azure's account. obstore refuses it if the URL also names it: abfss://container@account.dfs.core.windows.net."""
_MAX_PAUSE_S: Final = 5.0
_UNKNOWN: Final = re.compile(r"Configuration key: '([^']+)' is not valid")

_NO_ACCESS: Final = re.compile(
    r"\b40[13] (Forbidden|Unauthorized)|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch"
)
_EXPIRED: Final = re.compile(r"ExpiredToken|TokenRefreshRequired|token[^<]{0,20}expired", re.IGNORECASE)
"""Many answers of a store are raised as a generic error, so they are recognized by their text."""

_clients: dict[tuple[int, str, frozenset[tuple[str, str]]], Any] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Refusal:
    """A store has answered, and refused the login."""

    what: str
    help: str
    passes: bool
    """Whether the login has expired, and works again once it is renewed."""


_REFUSED: Final = Refusal(
    "refuses this login",
    "check storage_options, or the environment's credentials; the next attempt tries again",
    passes=False,
)
_OVER: Final = Refusal(
    "says that the login has expired",
    "renew it where it comes from: storage_options, or the environment; then the next attempt tries again",
    passes=True,
)


def refusal_of(text: str) -> Refusal | None:
    """Return the refusal in a client's error, or None if the error is not about the login."""
    if _EXPIRED.search(text):
        return _OVER
    return _REFUSED if _NO_ACCESS.search(text) else None


def bucket_client(url: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the client for a URL's bucket, and the path in it. Options that only delta-rs knows are ignored."""
    store = store_of(url)
    key = (os.getpid(), store, frozenset(options.items()))
    with _lock:
        if key not in _clients:
            _clients[key] = _opened_leniently(store, options)
        return _clients[key], url[len(store) + 1 :].strip("/")


def open_client(url: str, options: Mapping[str, str], **client_arguments: Any) -> Any:
    """Return a new client whose paths begin at the URL. Raise Invalid for an unknown URL or option.

    Options of other stores, by their prefixes, are ignored.
    """
    try:
        return _opened(url, options, **client_arguments)
    except BaseException as error:  # obstore panics, which is no Exception, on some options
        if isinstance(error, KeyboardInterrupt | SystemExit | Invalid):
            raise
        raise Invalid(
            f"cannot open {url}: {str(error).strip().partition(chr(10))[0]}",
            expected="s3://bucket/path, gs://bucket/path or abfss://…, with options that this store knows",
            help="correct the setting 'root', the path, or the names in storage_options",
            reason="BAD_STORE",
        ) from None


def delete_objects(client: Any, paths: Sequence[str]) -> None:
    """Delete objects, in any order, with as few requests as the store allows. Objects may be missing."""
    if len(paths) > 1:
        with contextlib.suppress(FileNotFoundError):  # some stores raise it, and may not have deleted the others
            client.delete(list(paths))
            return
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            client.delete(path)


def polling_pause(url: str, waited_s: float, least_s: float) -> float:
    """Return how long to wait before reading a ledger again, after waiting `waited_s` for another process.

    In an object store each read costs several requests, and some processes wait for hours. So the pause grows to a
    fifth of the time waited, up to five seconds.
    """
    if is_url(url):
        return max(least_s, min(_MAX_PAUSE_S, waited_s / 5))
    return least_s


def _opened_leniently(url: str, options: Mapping[str, str]) -> Any:
    """Open a client without the options that its store does not know."""
    accepted = dict(options)
    while True:
        try:
            return open_client(url, accepted)
        except Invalid as error:
            unknown = _UNKNOWN.search(error.what)
            if unknown is None or accepted.pop(unknown[1], None) is None:
                raise


def _opened(url: str, options: Mapping[str, str], **client_arguments: Any) -> Any:
    from obstore.store import from_url

    scheme = url.partition("://")[0].lower()
    is_known_scheme = any(scheme in schemes for schemes in _OF_STORES.values())
    foreign_prefixes: tuple[str, ...] = ()
    if is_known_scheme:
        foreign_prefixes = tuple(prefix for prefix, schemes in _OF_STORES.items() if scheme not in schemes)
    has_account = "@" in store_of(url)
    client: dict[str, Any] = {"timeout": "30s"}
    store_options: dict[str, Any] = {}
    for name, value in options.items():
        plain = name.lower().removeprefix("aws_")
        if plain in _OF_CLIENTS:
            client[plain] = value.lower() == "true" if plain in _SWITCHES else value
        elif not (name.lower().startswith(foreign_prefixes) or (has_account and _ACCOUNT.fullmatch(name))):
            store_options[name] = value
    if scheme in _OF_STORES["aws_"]:
        client.setdefault("allow_http", os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"))
    _refuse_plain_http(store_options, allowed=client.get("allow_http") is True)
    make: Any = from_url  # its type hints lack options by name
    return make(url, client_options=client, **client_arguments, **store_options)


def _refuse_plain_http(options: Mapping[str, str], *, allowed: bool) -> None:
    """Raise Invalid for an endpoint without TLS that is not allowed. The client would say "builder error" each time."""
    for name, value in options.items():
        plain = name.lower().endswith(("endpoint", "endpoint_url")) and value.lower().startswith("http://")
        if plain and not allowed:
            raise Invalid(
                f"the store's address {name} is http://, without encryption",
                expected='https://, or allow_http = "true" beside it in storage_options',
                help="set allow_http if others cannot read that network",
                reason="BAD_STORE",
            )
