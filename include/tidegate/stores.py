"""Clients of object stores: one for each bucket and login, which all in this process use.

A client does not survive a fork: in the child it would wait for ever. So a forked process makes its own, and nothing is
opened at import.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from tidegate.errors import Invalid
from tidegate.records.place import store_of

__all__ = ["bucket_client", "open_client"]

_ALLOW_HTTP: Final = "allow_http"
_UNKNOWN: Final = re.compile(r"Configuration key: '([^']+)' is not valid")

_clients: dict[tuple[int, str, frozenset[tuple[str, str]]], Any] = {}
_lock = threading.Lock()


def bucket_client(url: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the client for a URL's bucket, and the URL's path in it. Options that only delta-rs knows are left out."""
    store = store_of(url)
    key = (os.getpid(), store, frozenset(options.items()))
    with _lock:
        if key not in _clients:
            _clients[key] = _opened_leniently(store, options)
        return _clients[key], url[len(store) + 1 :].strip("/")


def open_client(url: str, options: Mapping[str, str], **more: Any) -> Any:
    """Return a new client whose paths begin at the URL. Raise Invalid if it, or an option, is not known."""
    try:
        return _opened(url, options, **more)
    except BaseException as error:  # obstore panics, which is no Exception, on some options
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise Invalid(
            f"cannot open {url}: {str(error).strip().partition(chr(10))[0]}",
            expected="s3://bucket/path, gs://bucket/path or abfss://…, with options that this store knows",
            help="correct the setting 'root', the path, or the names in storage_options",
            reason="BAD_STORE",
        ) from None


def _opened_leniently(url: str, options: Mapping[str, str]) -> Any:
    known = dict(options)
    while True:
        try:
            return open_client(url, known)
        except Invalid as error:
            unknown = _UNKNOWN.search(error.what)
            if unknown is None or known.pop(unknown[1], None) is None:
                raise


def _opened(url: str, options: Mapping[str, str], **more: Any) -> Any:
    from obstore.store import from_url

    plain = [name for name in options if name.lower().removeprefix("aws_") == _ALLOW_HTTP]
    client: dict[str, Any] = {"timeout": "30s"}
    if any(options[name].lower() == "true" for name in plain):
        client[_ALLOW_HTTP] = True  # a client option for obstore, a store option for delta-rs
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in plain}
    make: Any = from_url  # its types do not know options by name
    return make(url, client_options=client, **more, **given)
