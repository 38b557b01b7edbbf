"""One life: random acts, some of which die on the way, and after each of them everybody looks at everything."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.ui.rights import PEOPLE
from tests.views.acts import ACTS, Doer
from tests.views.commands import Looks, look
from tests.views.remedies import Remedies
from tests.views.routes import Web
from tests.views.shops import Shops

__all__ = ["LifeReport", "live"]

FIRST = ("passes", "sets_aside")
"""So that there is something to look at."""


@dataclass
class LifeReport:
    """What was tried, and what was found."""

    story: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    looked: int = 0
    asked: int = 0
    tried: int = 0
    refused: list[str] = field(default_factory=list)
    """Remedies that were refused."""

    def __str__(self) -> str:
        return (
            f"{len(self.story)} acts × ({self.looked} commands, {self.asked} requests), {self.tried} remedies carried "
            f"out: {len(self.wrong)} wrong"
        )


def live(
    seed: int,
    folder: Path,
    web: Web | None,
    steps: int = 12,
    share: float = 1.0,
    acts: tuple[str, ...] = (),
    tell: Callable[[str], None] | None = None,
) -> LifeReport:
    """Seed's life. share: of the commands that show something, and of the people, after each act. acts: these, in place
    of random ones. tell: gets what happens, as it happens."""
    dice, told = random.Random(seed), LifeReport()
    tell = tell or (lambda _: None)
    shops = Shops(folder)
    remedies = Remedies()
    with shops.entered():
        doer = Doer(shops, dice)
        shops.feed(1, source="other")
        shops.run("run shop:other --until-idle")
        if web is not None:
            web.knows(shops)
            doer.pause = web.pause
        for name in acts or (*FIRST, *dice.choices(list(ACTS), k=steps)):
            story, said = doer.act(name, may_die=not acts and name not in FIRST)
            told.story.append(story)
            before = len(told.wrong)
            damaged = doer.damaged
            told.wrong += [f"`{each.line}` raises: {each.text.strip()[-1500:]}" for each in said if each.is_unforeseen]
            looks = look(shops, dice, damaged, share)
            told.looked += len(looks.said)
            told.wrong += looks.wrong
            if web is not None:
                asked = web.asked
                people = ["no XCom", dice.choice(list(PEOPLE))] if share < 1.0 else list(PEOPLE)
                told.wrong += web.look(_ids(shops), people, dice)
                told.asked += web.asked - asked
                if not damaged:
                    told.wrong += _disagreeing(web, looks)
            if not damaged:
                remedies.try_those_of(shops, [*said, *looks.said], name)
                told.wrong += remedies.wrong
                remedies.wrong = []
            tell(story)
            for place, each in enumerate(told.wrong[before:], before):
                told.wrong[place] = f"after {story}: {each}"
                tell(f"  WRONG {each}")
    told.tried, told.refused = len(remedies.tried), remedies.refused
    return told


def _disagreeing(web: Web, looks: Looks) -> Iterator[str]:
    """What the list of pipelines says to people in the browser, and `explain` in the shell."""
    states = web.states()
    for name in ("orders", "other"):
        document = looks.documents.get(f"explain {name}", {})
        if states.get(name) == "paused":
            continue  # the page knows from Airflow that the DAG is paused, and the shell does not
        if "state" in document and name in states and states[name] != document["state"]:
            yield f"the page says that {name} is {states[name]}, and `explain` {document['state']}"


def _ids(shops: Shops) -> dict[str, list[int]]:
    """The numbers that the records of a pipeline have."""
    records = {name: (shops.folder / "ledger" / name).glob("*/*") for name in ("orders", "daily", "other")}
    return {name: sorted(int(path.name) for path in found if path.name.isdigit()) for name, found in records.items()}
