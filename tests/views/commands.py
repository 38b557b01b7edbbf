"""Every command that shows something, in words and as JSON: none raises, and all say the same."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.views.shops import Said, Shops
from tidegate.cli.forms import FORMS, form_of
from tidegate.cli.targets import open_target
from tidegate.errors import TidegateError

__all__ = ["Looks", "look"]

ALWAYS = ("list", "explain orders", "explain other", "metrics", "summary", "savepoint list", "watch", "config")
"""What shows something whatever befell the pipeline: whoever needs it needs it most when something is broken."""


@dataclass
class Looks:
    """What was seen."""

    said: list[Said] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    documents: dict[str, Any] = field(default_factory=dict)
    """By the command."""


def lines(shops: Shops, dice: random.Random) -> Iterator[str]:
    """All commands that only show, of everything that is there."""
    yield from ("list", "config", "doctor", "quarantine list orders", "help states")
    ledger = open_target("orders", {}, started=False).ledger
    if ledger.identity() is None:
        return
    ids = list(range(1, ledger.view().last_id + 1)) if _readable(ledger) else list(ledger.ids())
    for name in shops.pipelines:
        yield from (f"list {name}", f"list {name} --all", f"explain {name}", f"summary {name}", f"metrics {name}")
        yield f"schema {name}"
        yield from (f"watch {name} --once", f"savepoint list {name}", f"doctor {name}")
    for sort in ("seconds", "rows_out", "planned"):
        yield f"list orders --sort {sort}"
    yield from ("list orders --state completed", "list orders --kind swap", "metrics", "profile orders")
    yield from ("plan shop:orders --no-spark", "check shop:orders --no-spark", "config shop:orders")
    yield from ("recover shop:orders --dry-run", "backfill shop:orders --from beginning --dry-run")
    yield from ("read orders sales", "read orders totals", "state orders", "state orders totals")
    yield "quarantine show orders checked"
    yield "quarantine show orders sales-refused"
    for id in ids:
        yield from (f"show orders {id}", f"explain orders {id}")
    for id in dice.sample(ids, min(2, len(ids))):
        yield from (f"read orders sales --checkpoint {id}", f"state orders totals --checkpoint {id}")
        yield from (f"profile orders --checkpoint {id}", f"rollback shop:orders --to {id} --dry-run")
        yield from (f"backfill shop:orders --from {id} --dry-run", f"fork orders --from {id} --as shop:trial --dry-run")
        yield f"diff orders {id} {dice.choice(ids)}"
        yield f"schema orders --from {id} --to {dice.choice(ids)}"
    if "other" in shops.pipelines:
        for id in open_target("other", {}, started=False).ledger.ids():
            yield from (f"show other {id}", f"explain other {id}")
    if "daily" in shops.pipelines:
        yield from ("read daily rows", "plan shop:daily --no-spark", "check shop:daily --no-spark", "profile daily")
        for id in open_target("daily", {}, started=False).ledger.ids():
            yield from (f"show daily {id}", f"explain daily {id}")
    for each in (shops.folder / "ledger" / "orders" / "savepoints").glob("*.json"):
        yield from (f"savepoint show orders {each.stem}", f"savepoint verify orders {each.stem}")


def _readable(ledger: Any) -> bool:
    try:
        ledger.view()
    except TidegateError:
        return False
    return True


def look(shops: Shops, dice: random.Random, damaged: bool, share: float = 1.0) -> Looks:
    """Look at everything. damaged: a record of `orders` is; then its own commands may refuse, with the cause. share: of
    the commands, which of them is the dice's choice."""
    looks = Looks()
    for line in lines(shops, dice):
        if share < 1.0 and dice.random() > share:
            continue
        words, document = shops.run(line), shops.run(f"{line} --json")
        looks.said += [words, document]
        for said in (words, document):
            if said.is_unforeseen or said.code is None:
                looks.wrong.append(f"`{said.line}` raises: {said.text.strip()[-1500:]}")
        if words.code != document.code:
            looks.wrong.append(f"`{line}` ends with {words.code} in words and with {document.code} as JSON")
        try:
            looks.documents[line] = document.json
        except json.JSONDecodeError:
            looks.wrong.append(f"`{line} --json` prints no JSON: {document.out[:200]!r}")
            continue
        command = next(name for name in FORMS if f"{line} ".startswith(f"{name} "))
        if misfit := form_of(command, document.json):
            looks.wrong.append(f"`{line} --json` is not as declared: {misfit}")
        refused = "error" in document.json
        if refused and document.code == 0:
            looks.wrong.append(f"`{line} --json` ends with 0, and tells an error: {document.out[:300]}")
        if refused and not (document.json["error"]["message"] and document.json["error"]["help"]):
            looks.wrong.append(f"`{line}` does not say what to do: {document.out[:300]}")
        own = damaged and ("orders" in line or (line == "metrics" and '"other"' in document.out))
        if document.code != 0 and line.startswith(ALWAYS) and not own:
            looks.wrong.append(f"`{line}` shows nothing: {words.text.strip()[:600]}")
    looks.wrong += list(_contradictions(looks.documents, damaged))
    return looks


def _contradictions(seen: dict[str, Any], damaged: bool) -> Iterator[str]:
    """Figures that do not agree with one another."""
    if damaged:
        return
    listed = seen.get("list orders --all")
    if listed and "checkpoints" in listed:
        states = {each["id"]: each["state"] for each in listed["checkpoints"]}
        for id, state in states.items():
            shown = seen.get(f"show orders {id}")
            if shown and "error" not in shown and shown["state"] != state:
                yield f"checkpoint {id} is {state} in `list`, and {shown['state']} in `show`"
    for line, shown in seen.items():
        explained = seen.get(line.replace("show", "explain", 1))
        if line.startswith("show ") and explained and "error" not in shown | explained:
            drift = {name: part["drift"] for name, part in shown["ranges"].items() if part["drift"]}
            if drift != explained["drift"]:
                yield f"what did not fit is not the same in `{line}` and in `explain`"
    pipelines, newest = seen.get("list"), seen.get("list orders")
    for each in (pipelines or {}).get("pipelines", []):
        if each["name"] == "orders" and newest and newest.get("checkpoints"):
            first = newest["checkpoints"][0]["id"]
            if each["last_checkpoint"] != first:
                yield f"`list` says that the last one of orders is {each['last_checkpoint']}, and `list orders` {first}"
    other = seen.get("explain other")
    if other and other.get("state") != "well":
        yield f"`other` is {other.get('state')}, to which nothing was done"
