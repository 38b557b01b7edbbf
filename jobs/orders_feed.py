"""Writes files of orders and payments into landing/, for `jobs/orders.py` to read: the same files on every machine.

    python -m jobs.orders_feed --live 12                   the last 12, then each new one when its time has passed
    python -m jobs.orders_feed --files 10 --rows 1000      the next 10, regardless of the clock
    python -m jobs.orders_feed --files 4 --every 30        four now, then one more each 30 s

The content of file *k* depends only on *k* and the number of rows, so the files determine what must be in the tables. A
file has 30 seconds of orders, or of payments; the first starts with the year 2026. One order in 20 is one or two files
late; one in 30 is sent twice; one in 40 is bad, in one of four ways. Nine orders in ten are paid, within 40 seconds;
one payment in 20 is one file late.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.config import load_settings

COUNTRIES = ("AT", "BR", "DE", "IN", "KE", "US")
METHODS = ("card", "transfer", "cash")
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
FILE = timedelta(seconds=30)
"""The time that the orders in one file span."""


def feed(data: Path, files: int, rows: int) -> list[Path]:
    """Write the next `files` files of `rows` orders, and of payments, below `data`; return their paths."""
    first = last_file(data) + 1
    paths: list[Path] = []
    for number in range(first, first + files):
        paths += write_both(data, number, rows)
    return paths


def feed_live(data: Path, files: int, rows: int) -> list[Path]:
    """Write each missing file whose time has passed, but at most the last `files` of them."""
    now = (seams.now() - START) // FILE
    paths: list[Path] = []
    for number in range(max(last_file(data), now - files) + 1, now + 1):
        paths += write_both(data, number, rows)
    return paths


def last_file(data: Path) -> int:
    """Return the number of the last file that has been written, or 0."""
    names = (path.name for path in (data / "landing/payments").glob("*"))
    matches = (re.fullmatch(r"payments-(\d+)\.json", name) for name in names)
    return max((int(match[1]) for match in matches if match), default=0)


def write_both(data: Path, number: int, rows: int) -> list[Path]:
    """Write the file of orders and the one of payments with this number."""
    written = []
    for name, content in (("orders", lines(number, rows)), ("payments", payments(number, rows))):
        folder = data / "landing" / name
        folder.mkdir(parents=True, exist_ok=True)
        written.append(write(folder / f"{name}-{number:06d}.json", content))
    return written


def write(path: Path, content: Iterable[str]) -> Path:
    """Write a file atomically: readers ignore names that end in .tmp."""
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    temporary.rename(path)
    return path


def lines(number: int, rows: int) -> Iterator[str]:
    """Yield the lines of orders file `number`: its own orders, and late ones of the two previous files."""
    for order_id in range(max(number - 3, 0) * rows, number * rows):
        if order_id // rows + 1 + delay(order_id) != number:
            continue
        order = order_of(order_id, rows)
        yield spoiled(order, order_id) if picked(order_id, "bad", 40) else json.dumps(order)
        if picked(order_id, "twice", 30):
            yield json.dumps(order)


def payments(number: int, rows: int) -> Iterator[str]:
    """Yield the lines of payments file `number`: its own payments, and late ones of the previous file."""
    for order_id in range(max(number - 4, 0) * rows, number * rows):
        payment = payment_of(order_id, rows)
        if payment is None:
            continue
        made_in = (datetime.fromisoformat(payment["at"]) - START) // FILE + 1
        if made_in + picked(order_id, "paid late", 20) == number:
            yield json.dumps(payment)


def delay(order_id: int) -> int:
    """Return by how many files the order is late."""
    return 1 + number_of(order_id, "delay") % 2 if picked(order_id, "late", 20) else 0


def order_of(order_id: int, rows: int) -> dict[str, Any]:
    """Return a good order."""
    return {
        "order_id": order_id,
        "customer_id": number_of(order_id, "customer") % 500,
        "country": COUNTRIES[number_of(order_id, "country") % len(COUNTRIES)],
        "amount": f"{number_of(order_id, 'amount') % 50_000 / 100:.2f}",
        "at": (START + FILE * order_id / rows).isoformat(),
    }


def payment_of(order_id: int, rows: int) -> dict[str, Any] | None:
    """Return the order's payment, or None if it is not paid."""
    if picked(order_id, "unpaid", 10):
        return None
    wait = timedelta(seconds=number_of(order_id, "wait") % 40)
    method = METHODS[number_of(order_id, "method") % len(METHODS)]
    return {"order_id": order_id, "method": method, "at": (START + FILE * order_id / rows + wait).isoformat()}


def spoiled(order: dict[str, Any], order_id: int) -> str:
    """Return the order as a broken producer would send it."""
    match number_of(order_id, "how") % 4:
        case 0:
            return json.dumps(order)[:-15]
        case 1:
            return json.dumps(order | {"order_id": None})
        case 2:
            return json.dumps(order | {"amount": "-1.00"})
        case _:
            return json.dumps({name: value for name, value in order.items() if name != "at"})


def picked(id: int, purpose: str, one_in: int) -> bool:
    """Pick one order in `one_in`, the same ones on every machine."""
    return number_of(id, purpose) % one_in == 0


def number_of(id: int, purpose: str) -> int:
    """Return a number that looks random but depends only on the arguments."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {id}".encode()).digest()[:6], "big")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the next files of orders and payments into landing/.")
    parser.add_argument(
        "--live", type=int, metavar="N", help="the last N by the clock, then each new one when its time has passed"
    )
    parser.add_argument("--files", type=int, default=10, metavar="N", help="number of files of each (10)")
    parser.add_argument("--rows", type=int, default=1000, metavar="N", help="orders per file (1000)")
    parser.add_argument("--every", type=float, metavar="S", help="then one more of each every S seconds, endlessly")
    args = parser.parse_args()
    data = Path(load_settings().data)
    while args.live:
        report(feed_live(data, args.live, args.rows))
        seams.sleep(((START - seams.now()) % FILE).total_seconds() + 0.1)
    report(feed(data, args.files, args.rows))
    while args.every:
        seams.sleep(args.every)
        report(feed(data, 1, args.rows))


def report(written: list[Path]) -> None:
    if written:
        print(f"{len(written)} files of orders and payments: {written[0].name} to {written[-1].name}", flush=True)


if __name__ == "__main__":
    main()
