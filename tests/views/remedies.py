"""Each remedy that names a command is carried out as it is written, on a copy: it works, and what it promises is so."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.views.shops import NAMES, Said, Shops

__all__ = ["Remedies", "remedies_in"]

QUOTED = re.compile(r"`tidegate ([a-z-]+ [^`]+)`")
BARE = re.compile(r"(?:: |  )(?:python -m )?tidegate ([a-z-]+ \S[^;\n]*?)(?:\s{2,}.*|;.*|, or .*)?$", re.M)
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]{1,}\b|\bN\b|…|\.\.\.|<|\[")
WAITING = re.compile(r"waits for checkpoint \d|waiting: checkpoint [\d, ]+ (is|are) not decided yet")
HELD = re.compile(r"waiting: checkpoint \d+ is held by gate")
ELSEWHERE = ("up", "init", "new", "spark", "help", "completion", "trigger")
"""Another process, another folder, or Airflow: stories of their own."""


def remedies_in(said: Iterable[Said]) -> Iterator[tuple[str, str]]:
    """The commands that texts name, as a user of this folder types them, each with the command that printed it."""
    for each in said:
        text = each.text if "--json" not in each.line and not each.line.startswith("help") else ""
        for found in (*QUOTED.findall(text), *BARE.findall(text)):
            line = " ".join(found.split()).rstrip(".,;:)")
            for name in NAMES:
                line = line.replace(f"MODULE:{name}", f"shop:{name}")
            about = next((name for name in NAMES if re.search(rf"\b{name}\b", each.line)), "orders")
            line = line.replace("MODULE:PIPELINE", f"shop:{about}").replace("MODULE:pipeline", f"shop:{about}")
            line = re.sub(r"\bNAME\b", about, line)
            if not PLACEHOLDER.search(line.replace("shop:", "")) and line.split()[0] not in ELSEWHERE:
                yield line, each.line


Promise = Callable[[Shops, Said], str | None]


def name_in(said: Said) -> str:
    """The pipeline that a command was about."""
    return shlex.split(said.line)[1].removeprefix("shop:")


def explained(shops: Shops, said: Said) -> dict[str, Any]:
    found = shops.run(f"explain {name_in(said)} --json").json
    assert isinstance(found, dict)
    return found


def is_not_suspended(shops: Shops, said: Said) -> str | None:
    state = explained(shops, said).get("state")
    return f"is still {state}" if state in ("suspended", "stopped", "cancelled") else None


def is_there(shops: Shops, said: Said) -> str | None:
    """The pipeline stands where it was to go back to."""
    words = shlex.split(said.line)
    to = words[words.index("--to") + 1]
    listed = shops.run(f"list {name_in(said)} --all --json").json
    newest = listed["checkpoints"][0] if listed.get("checkpoints") else {}
    kinds = (newest.get("kind"), newest.get("state"))
    return None if "rollback" in kinds else f"the newest entry is {kinds}, no rollback to {to}"


def nothing_is_pending(shops: Shops, said: Said) -> str | None:
    state = explained(shops, said).get("state")
    return f"is still {state}" if state in ("unpublished", "orphaned") else None


PROMISES: dict[str, Promise] = {"resume": is_not_suspended, "rollback": is_there, "recover": nothing_is_pending}
ASKING = ("rollback", "recover", "backfill", "disown", "mark", "stop", "cancel", "source drop", "source accept")
"""What asks people before it does it."""


JUDGING = ("run", "check", "plan", "doctor", "suite")
"""What may end with 1 or 3 although it works: that is what it has found, or what has become of a checkpoint."""


@dataclass
class Remedies:
    """What was tried of a life, and did not work."""

    tried: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def try_those_of(self, shops: Shops, said: Iterable[Said], at: str) -> None:
        """Each kind of remedy once at each kind of act: `resume orders` after a suspension is not one after a stop."""
        for line, by in dict(remedies_in(said)).items():
            kind = f"{at}: {re.sub(r'[0-9]+', 'n', line)}"
            if kind in self.kinds:
                continue
            self.kinds.add(kind)
            with shops.copied():
                self._try(shops, line, f"{at}, by `{by}`")

    def _try(self, shops: Shops, line: str, at: str) -> None:
        verb = line.split()[0]
        asks = line.startswith(ASKING) and "--dry-run" not in line
        told = shops.run(f"{line} --yes" if asks and "--yes" not in line else line)
        self.tried.append(line)
        if told.code in (1, 3):
            self.refused.append(f"after {at}, `{line}`: {' '.join(told.text.split())[:300]}")
        if told.is_unforeseen or told.code is None:
            self.wrong.append(f"after {at}, the remedy `{line}` raises: {told.text.strip()[-1200:]}")
        elif "interrupted" in told.err and (HELD.search(told.text) or (shops.died and WAITING.search(told.text))):
            pass  # rightly: until somebody answers, or the time for that checkpoint is over
        elif told.code == 1 and shops.died and WAITING.search(told.text):
            pass  # rightly: it says what it waits for, and that this ends by itself
        elif told.code == 2 or "usage:" in told.err or (told.code and verb not in JUDGING):
            self.wrong.append(f"after {at}, the remedy `{line}` cannot be carried out: {told.text.strip()[:900]}")
        elif told.code == 0 and verb in PROMISES and (why := PROMISES[verb](shops, told)):
            self.wrong.append(f"after {at}, the remedy `{line}` does not keep its promise: {why}")
