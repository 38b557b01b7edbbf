"""What tests of sources share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tidegate.sources import Files, Planned


def files(pattern: str = "landing/*.json", **changes: object) -> Files:
    """A Files source with one column; `changes` are its other arguments."""
    return Files(pattern, **({"schema": "id long"} | changes))  # type: ignore[arg-type]


def put(folder: Path, names: Iterable[str], text: str | None = None) -> None:
    """Make files; each says its own name unless `text` is given."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name if text is None else text)


def names(planned: Planned) -> list[str]:
    """The files of a plan, in its order."""
    return [file["name"] for file in planned.splits["files"]]


STRANGE = [
    "[1].json", "{a,b}.json", "star*.json", "what?.json", "back\\slash.json", "two words.json", "100%25.json",
    "a=b.json", "漢字 é.json", "new\nline.json", "co:lon.json", "ha#sh.json", "it's \"quoted\".json", "+;&,.json",
]  # fmt: skip
