"""Puts files of order events into landing/orders, for `jobs/orders.py` to read: the same ones on every machine.

    python -m jobs.orders_feed --files 10 --rows 1000
    python -m jobs.orders_feed --files 4 --every 30        four now, then one every 30 s until it is stopped

Numbering goes on where the last call stopped. What file *k* holds depends on *k* and the number of rows
alone, so whoever knows the files knows what must be in the tables. An order is placed and paid in one
file, shipped and delivered in the next. One event in 20 comes a file or two late, behind later ones of
its order; one in 30 comes twice; one in 40 is bad, in one of four ways.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.config import load_settings

FOLDER = "landing/orders"
STEPS = ("placed", "paid", "shipped", "delivered")
COUNTRIES = ("AT", "BR", "DE", "IN", "KE", "US")
START = datetime(2026, 1, 1, tzinfo=UTC)


def feed(data: Path, files: int, rows: int) -> list[Path]:
    """Write the next `files` files of `rows` events below `data`; answers with their paths."""
    folder = data / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    taken = [int(match[1]) for path in folder.iterdir() if (match := re.fullmatch(r"orders-(\d+)\.json", path.name))]
    first = max(taken, default=0) + 1
    return [write(folder, number, rows + rows % 2) for number in range(first, first + files)]


def write(folder: Path, number: int, rows: int) -> Path:
    """File `number`, whole or not at all: readers ignore names that end in .tmp."""
    path = folder / f"orders-{number:06d}.json"
    aside = path.with_suffix(".json.tmp")
    aside.write_text("".join(f"{line}\n" for line in lines(number, rows)), encoding="utf-8")
    aside.rename(path)
    return path


def lines(number: int, rows: int) -> Iterator[str]:
    """The lines of file `number`: its own events, then those of the two files before it that come late."""
    for event_id in range(max(number - 3, 0) * rows, number * rows):
        if event_id // rows + 1 + delay(event_id) != number:
            continue
        event = event_of(event_id, rows)
        yield spoiled(event, event_id) if picked(event_id, "bad", 40) else json.dumps(event)
        if picked(event_id, "twice", 30):
            yield json.dumps(event)


def delay(event_id: int) -> int:
    """How many files late the event comes."""
    return 1 + number_of(event_id, "delay") % 2 if picked(event_id, "late", 20) else 0


def event_of(event_id: int, rows: int) -> dict[str, Any]:
    """A good event: one step in the life of one order."""
    file, place = divmod(event_id, rows)
    order_id = file // 2 * (rows // 2) + place // 2
    return {
        "event_id": event_id,
        "order_id": order_id,
        "customer_id": number_of(order_id, "customer") % 500,
        "country": COUNTRIES[number_of(order_id, "country") % len(COUNTRIES)],
        "status": STEPS[file % 2 * 2 + place % 2],
        "amount": f"{number_of(order_id, 'amount') % 50_000 / 100:.2f}",
        "at": (START + timedelta(seconds=event_id)).isoformat(),
    }


def spoiled(event: dict[str, Any], event_id: int) -> str:
    """The event as a broken producer would send it."""
    match number_of(event_id, "how") % 4:
        case 0:
            return json.dumps(event)[:-15]
        case 1:
            return json.dumps(event | {"order_id": None})
        case 2:
            return json.dumps(event | {"amount": "-1.00"})
        case _:
            return json.dumps({name: value for name, value in event.items() if name != "at"})


def picked(event_id: int, what: str, one_in: int) -> bool:
    """Whether the event is one of those; the same on every machine."""
    return number_of(event_id, what) % one_in == 0


def number_of(id: int, what: str) -> int:
    """A number that looks random and is not."""
    return int.from_bytes(hashlib.sha256(f"{what} {id}".encode()).digest()[:6], "big")


def main() -> None:
    parser = argparse.ArgumentParser(description="Put the next files of order events into landing/orders.")
    parser.add_argument("--files", type=int, default=10, metavar="N", help="how many files (10)")
    parser.add_argument("--rows", type=int, default=1000, metavar="N", help="events a file, even (1000)")
    parser.add_argument("--every", type=float, metavar="S", help="then one more file every S seconds, for ever")
    args = parser.parse_args()
    data = Path(load_settings().data)
    told(feed(data, args.files, args.rows))
    while args.every:
        seams.sleep(args.every)
        told(feed(data, 1, args.rows))


def told(written: list[Path]) -> None:
    names = dict.fromkeys((written[0].name, written[-1].name)) if written else {}
    print(f"{len(written)} files of order events in {FOLDER}: {' to '.join(names)}", flush=True)


if __name__ == "__main__":
    main()
