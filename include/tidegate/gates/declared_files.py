"""Files that belong to the code and declare rules: suites and contracts."""

from __future__ import annotations

from pathlib import Path

from tidegate.errors import Invalid
from tidegate.records.place import Place, is_url

__all__ = ["local_path", "read_text"]


def local_path(place: Place, name: str, subject: str, reason: str) -> Path:
    """Return where a file of the project is. Raise Invalid if it is not on this machine.

    subject: how an error begins, such as "suite 'orders'". reason: its reason.
    """
    url = place.of_project(name)
    if is_url(url):
        raise Invalid(
            f"{subject} would be read from {url}",
            expected="a local file, as it belongs to the code",
            help="copy it into the project, and name it by its path",
            reason=reason,
        )
    return Path(url)


def read_text(path: Path, kind: str, *, expected: str, help: str, reason: str) -> str:
    """Return the text of a file. Raise Invalid if it cannot be read.

    kind: what it is, such as "suite". expected, help: for a file that does not exist, in a folder without others.
    """
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        near = sorted(file.name for file in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        raise Invalid(
            f"there is no {kind} {path}",
            expected=f"one of {', '.join(near)}" if near else expected,
            help=help,
            reason=reason,
        ) from None
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not UTF-8: {error}", help="save it as UTF-8", reason=reason) from error
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", help="check the path", reason=reason) from error
