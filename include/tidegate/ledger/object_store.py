"""The ledger on an object store: the same guarantees, by conditional put.

obstore must not be used in a process that forks afterwards (the forked child hangs forever). So local folders do not
use it, and nothing is opened at import.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidegate import seams
from tidegate.errors import Invalid, Unavailable
from tidegate.ledger.store import CLOCK, Store, parts, within
from tidegate.stores import delete_objects, open_client, refusal_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

__all__ = ["ObjectStore"]

_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_NOT_IMPLEMENTED = re.compile(r"\b501\b|not( yet)? implemented|NotImplemented", re.IGNORECASE)


class ObjectStore(Store):
    """A prefix of a bucket (s3://, gs://, az://) or, for tests, memory://."""

    at_once = 16

    def __init__(self, url: str, options: Mapping[str, str], client: Client | None = None) -> None:
        self.root = url.rstrip("/")
        self._options = dict(options)
        self._opened = client

    def create(self, path: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._failures("create", path):
            try:
                self._client.put(_checked(path), data, mode="create")
            except (AlreadyExistsError, PreconditionError):
                return False
            except Exception as error:
                if _NOT_IMPLEMENTED.search(str(error)):
                    raise self._unsafe(f"it refuses a conditional put ({_first_line(error)})") from None
                raise
            return True

    def refuse_unsafe(self) -> None:
        probe = f"{CLOCK}/{seams.new_id()}.probe"
        client = self._opened or self._open(retry_config={"max_retries": 1})  # fail soon if it never accepts one
        with self._failures("try out", probe):
            try:
                why = _overwrites(client, probe)
            finally:
                with contextlib.suppress(Exception):
                    client.delete(probe)
        if why:
            raise self._unsafe(why)

    def _unsafe(self, why: str) -> Invalid:
        return Invalid(
            f"{self.root} cannot guarantee that an object is created only once: {why}. So two runs could own "
            "one checkpoint",
            expected="a store with conditional puts (If-None-Match: *), such as Amazon S3 and Azure",
            help="upgrade that store to a version that has them, and do not turn them off in storage_options; "
            "or use another store or a local folder ('root', 'data', a sink's path)",
            reason="NO_CONDITIONAL_PUT",
        )

    def read(self, path: str) -> bytes | None:
        with self._failures("read", path):
            try:
                return bytes(self._client.get(_checked(path)).bytes())
            except FileNotFoundError:
                return None

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        if len(paths) < 2:
            return super().read_all(paths)
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(self.read, paths))

    def names(self, folder: str, after: str = "", before: str | None = None) -> list[str]:
        """Return objects and common prefixes directly below. Lists only from `after` on, and not beyond `before`."""
        prefix = f"{_checked(folder)}/" if folder else ""
        names: set[str] = set()
        with self._failures("list", folder):
            if after:
                for batch in self._client.list(prefix, offset=prefix + after):
                    for meta in batch:
                        names.add(meta["path"].removeprefix(prefix).split("/")[0])
                    if before is not None and names and max(names) >= before:
                        break
            else:
                listed = self._client.list_with_delimiter(prefix)
                names = {p.rstrip("/").rpartition("/")[2] for p in listed["common_prefixes"]}
                for meta in listed["objects"]:
                    names.add(meta["path"].rpartition("/")[2])
        return within(names, after, before)

    def replace(self, path: str, data: bytes) -> None:
        with self._failures("write", path):
            self._client.put(_checked(path), data, mode="overwrite")

    def delete(self, path: str) -> None:
        with self._failures("delete", path):
            below = []
            for batch in self._client.list(f"{_checked(path)}/"):
                for meta in batch:
                    below.append(meta["path"])
            delete_objects(self._client, [*below, path])

    def delete_files(self, paths: Sequence[str]) -> None:
        with self._failures("delete", paths[0] if paths else ""):
            delete_objects(self._client, [_checked(path) for path in paths])

    def age(self, path: str) -> float | None:
        """Return the age by the store's clock alone: both the object and a probe written now carry its time."""
        probe = f"{CLOCK}/{seams.new_id()}.probe"
        with self._failures("look at", path):
            try:
                created: datetime = self._client.head(_checked(path))["last_modified"]
            except FileNotFoundError:
                return None
            self._client.put(probe, b"")
            try:
                now: datetime = self._client.head(probe)["last_modified"]
            finally:
                self._client.delete(probe)
            return (now - created).total_seconds()

    def sync(self, path: str) -> None:
        """An object that can be read is durable."""

    @property
    def _client(self) -> Any:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self, **extra: Any) -> Any:
        return open_client(self.root, self._options, **extra)

    @contextlib.contextmanager
    def _failures(self, action: str, path: str) -> Iterator[None]:
        """Turn a client error into one that says how to resolve it. Messages never contain options: they may be
        secrets."""
        try:
            yield
        except Exception as error:
            from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

            url, text = f"{self.root}/{path}", str(error)
            if not isinstance(error, BaseError | OSError):
                raise
            if isinstance(error, FileNotFoundError) or _NO_BUCKET.search(text):
                raise Invalid(
                    f"cannot {action} {url}: no such bucket or container",
                    expected="a bucket that exists",
                    help="create it, or correct the settings 'root' and 'data', or the path",
                    reason="NO_BUCKET",
                ) from None
            refusal = refusal_of(text)
            if refusal is not None and refusal.passes:
                raise Unavailable(
                    f"cannot {action} {url}: the store {refusal.what} ({_first_line(error)})",
                    help=refusal.help,
                    reason="STORAGE",
                ) from None
            if isinstance(error, PermissionDeniedError | UnauthenticatedError) or refusal is not None:
                raise Invalid(
                    f"no access to {url}",
                    expected="credentials that may list, read, create and delete there",
                    help="check storage_options, or the environment's credentials",
                    reason="NO_ACCESS",
                ) from None
            raise Unavailable(
                f"cannot {action} {url}: {_first_line(error)}",
                help="it is retried; if this persists, check the network, the store itself and storage_options",
                reason="STORAGE",
            ) from None


def _overwrites(client: Client, probe: str) -> str:
    """Return how two clients could both create the same object; empty if they cannot."""
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    for last_try in (False, True):
        try:
            client.put(probe, b"the first", mode="create")
        except (AlreadyExistsError, PreconditionError):
            pass  # created by an earlier try whose answer was lost
        except (BaseError, OSError, NotImplementedError) as error:
            client.put(probe, b"")  # if this fails as well, the condition is not the cause
            client.delete(probe)
            if last_try:
                return f"it refuses a conditional put ({_first_line(error)})"
            continue
        break
    try:
        client.put(probe, b"the second", mode="create")
    except (AlreadyExistsError, PreconditionError):
        return ""
    return "it ignores the condition of a put, and overwrites the existing object"


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:300]


def _checked(path: str) -> str:
    return "/".join(parts(path))
