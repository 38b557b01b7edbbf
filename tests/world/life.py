"""One life: rows arrive, checkpoints are made, and at any moment something befalls the other side of the connector."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.postgres import programs
from tests.views.shops import CANARY, Said
from tests.world.delta_sink import DeltaAppendSide, DeltaUpsertSide
from tests.world.delta_source import DeltaSourceSide
from tests.world.export_sink import ExportSide
from tests.world.files_source import FilesSide
from tests.world.iceberg_sink import IcebergSide
from tests.world.kafka_sides import KafkaSinkSide, KafkaSourceSide
from tests.world.other_side import Happening, OtherSide, Servers
from tests.world.postgres_sink import PostgresAppendSide, PostgresUpsertSide
from tests.world.postgres_source import PostgresChangesSide, PostgresRowsSide
from tests.world.project import Project, at_a_point

__all__ = ["CHEAP", "SIDES", "Lived", "live"]

SIDES: dict[str, type[OtherSide]] = {
    each.kind: each for each in (
        FilesSide, DeltaSourceSide, DeltaAppendSide, DeltaUpsertSide, ExportSide, IcebergSide, PostgresRowsSide,
        PostgresChangesSide, PostgresAppendSide, PostgresUpsertSide, KafkaSourceSide, KafkaSinkSide,
    )
}  # fmt: skip
COMMAND = re.compile(r"tidegate ((?:[a-z]+ )+MODULE:PIPELINE(?: [\w.-]+)*)")
AGAIN, UNDONE = "again", "undone"
FIRST = "it is the first checkpoint"
"""By event it is made even if there is nothing to read yet, unlike by `run --until-idle`."""
CHEAP = tuple(kind for kind, side in SIDES.items() if not side.needs)
"""Those that need no server."""


@dataclass
class Lived:
    """What was tried, and what was found."""

    kind: str = ""
    acts: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    remedies: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 0
    rows: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.acts.total()} acts ({len(self.acts)} kinds), {self.checkpoints} checkpoints, "
            f"{self.rows} rows, {self.causes.total()} named causes, {self.remedies.total()} remedies: "
            f"{len(self.wrong)} wrong"
        )


def live(
    seed: int,
    folder: Path,
    servers: Servers,
    *,
    steps: int = 6,
    kinds: Sequence[str] = CHEAP,
    acts: Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
) -> Lived:
    """Seed's life. kinds: of which one is drawn. acts: these, each between two checkpoints, in place of random ones."""
    dice = random.Random(seed)
    side = SIDES[dice.choice(list(kinds))](dice, servers)
    life = _Life(side, dice, Lived(side.kind), tell or (lambda _: None))
    try:
        life.begin(folder)
        with life.project.entered():
            life.first()
            for step in acts or [""] * steps:
                if life.told.wrong or life.ended:
                    break  # what follows would only follow from that
                life.step(step, planned=bool(acts))
    finally:
        side.end()
    return life.told


@dataclass
class _Life:
    side: OtherSide
    dice: random.Random
    told: Lived
    tell: Callable[[str], None]
    ended: bool = False

    @property
    def project(self) -> Project:
        return self.side.project

    def begin(self, folder: Path) -> None:
        reads, writes = self.side.declared()
        retained = self.dice.choice([1, 2, 3])
        project = Project(
            folder, retained=retained, reads=reads, writes=writes, connections=self.side.connections(folder)
        )
        self.side.begin(project)
        self.tell(f"{reads} -> {writes}")

    def first(self) -> None:
        self.side.arrive()
        self.judge("the first rows", self.checkpoints(), Happening())

    def step(self, name: str, *, planned: bool) -> None:
        dice = self.dice
        for _ in range(dice.choice([0, 1, 1, 2])):
            self.side.arrive()
        if not planned and dice.random() < 0.5:
            self.judge("more rows", self.checkpoints(), Happening())
            self.side.arrive()
            if self.told.wrong:
                return
        if planned or dice.random() < 0.6:
            done = self.befall(name)
            if dice.random() < 0.5:
                self.side.arrive()
            said = self.checkpoints()
        else:
            done, said = self.in_a_checkpoint()
        if self.judge(done.what, said, done):
            if done.passing and done.undo is not None:
                done.undo()
            return
        if done.final:
            self.ended = True
            return
        for _ in range(3):
            how = self.mend(done, said)
            if self.told.wrong:
                return
            if dice.random() < 0.5:
                self.side.arrive()
            said = self.checkpoints()
            may_be_refused = how == AGAIN or (how == UNDONE and done.remedy)
            if self.judge(f"{done.what}, then {how}", said, done if may_be_refused else Happening()):
                return
            if self.told.wrong:
                return

    def checkpoints(self) -> Said:
        """Make all that are needed. Whoever watches by event must have asked for them, and asks for no more then."""
        before = self.project.watched()
        said = self.project.make_checkpoints()
        made = len(_document(said).get("checkpoints", ()))
        if made and not before:
            self.told.wrong.append(f"a run has made {made} checkpoints that nobody asks for")
        after = self.project.watched()
        if said.code == 0 and after not in ("", FIRST):
            self.told.wrong.append(f"all is read, and a checkpoint is asked for: {after}")
        return said

    def befall(self, name: str = "") -> Happening:
        """One act, drawn or named."""
        names = [name] if name else self.dice.sample(self.side.acts(), k=len(self.side.acts()))
        happening: Happening | None
        for each in names:
            happening = getattr(self.side, each)()
            if happening is not None:
                happening.what = happening.what or each
                self.told.acts[each] += 1
                self.tell(each)
                return happening
        return Happening(what="nothing")

    def in_a_checkpoint(self) -> tuple[Happening, Said]:
        """One act in the middle of a checkpoint, which continues, or is given up and made again."""
        happened: list[Happening] = []

        def befall() -> None:
            try:
                happened.append(self.befall())
            except Exception as error:
                if type(error).__name__ != "LockNotAvailable":  # the checkpoint holds it
                    raise

        dies = self.dice.random() < 0.4
        hook, where = at_a_point(self.dice, befall, dies)
        said = self.project.make_checkpoints(at=hook)
        if not happened:
            return Happening(what="nothing"), said
        done = happened[0]
        done.what += f" at {where[0]}" + (" (dies)" if dies else "")
        done.reasons |= frozenset(self.side.in_flight.split())
        if dies or said.code == 0:  # it may have come by before that happened
            self.told.checkpoints += len(_document(said).get("checkpoints", ()))
            self.side.arrive()
            said = self.project.make_checkpoints()
        return done, said

    def mend(self, done: Happening, said: Said) -> str:
        """Do what the cause advises, or undo what was done."""
        lines = [line for line in _commands_in(said) if done.remedy and line.startswith(done.remedy)]
        ways = ["undo"] if done.undo is not None else []
        ways += ["remedy"] if lines else []
        ways += ["statement"] if done.statement is not None else []
        ways += ["code"] if done.code is not None and done.advice in said.text else []
        if not ways:
            if _document(said)["error"]["reason"] in self.side.in_flight.split():
                return AGAIN
            self.told.wrong.append(f"{done.what}: no way on is known from {said.text.strip()[-900:]}")
            return "nothing"
        way = self.dice.choice(ways)
        self.tell(f"  {way}")
        self.told.remedies[way] += 1
        if way == "undo":
            assert done.undo is not None
            done.undo()
            done.undo = None
            return UNDONE
        if way == "statement":
            assert done.statement is not None
            done.statement(_document(said)["error"]["help"])
            return "the statement"
        if way == "code":
            assert done.code is not None
            done.code()
        else:
            answer = self.project.run(f"{lines[0]} --yes")
            if answer.code != 0:
                self.told.wrong.append(f"{done.what}: the remedy `{lines[0]}` fails: {answer.text.strip()[-900:]}")
        if done.effect is not None:
            done.effect()
        return lines[0] if way == "remedy" else "changed code"

    def judge(self, story: str, said: Said, done: Happening) -> bool:
        """Whether checkpoints were made up to the end of what is there."""
        wrong = self.told.wrong
        before = len(wrong)
        document = _document(said)
        self.told.checkpoints += len(document.get("checkpoints", ()))
        self.told.rows = max(self.told.rows, self.project.last_id)
        succeeded = said.code == 0
        if said.code is None or said.is_unforeseen:
            wrong.append(f"raises: {said.text.strip()[-2500:]}")
        elif not succeeded:
            wrong += self.wrong_with_cause(said, document, done)
        try:
            wrong += self.side.wrong(succeeded)
        except Exception as error:
            if succeeded:
                wrong.append(f"cannot be read: {type(error).__name__}: {error}")
        for place, each in enumerate(wrong[before:], before):
            wrong[place] = f"after {story}: {each}"
            self.tell(f"  WRONG {wrong[place]}")
        if not succeeded and len(wrong) == before:
            self.tell(f"  {document['error']['reason']}: {document['error']['message'][:160]}")
        return succeeded

    def wrong_with_cause(self, said: Said, document: dict[str, Any], done: Happening) -> list[str]:
        error = document.get("error")
        if not error:
            return [f"ends with {said.code} and no cause: {said.text.strip()[-900:]}"]
        self.told.causes[error["reason"]] += 1
        whole = f"{error['reason']}: {error['message']}\n{error['expected']}\n{error['help']}"
        found = []
        if error["reason"] not in done.reasons:
            found.append(f"is refused, where {sorted(done.reasons) or 'nothing'} is to be expected: {whole}")
        if not any(name in error["message"] for name in self.side.names):
            found.append(f"the cause does not name {self.side.names[0]}: {whole}")
        if not error["help"]:
            found.append(f"the cause does not say what to do: {whole}")
        if CANARY in said.text:
            found.append(f"the cause quotes a row: {whole}")
        return found


def _document(said: Said) -> dict[str, Any]:
    try:
        found = json.loads(said.out)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _commands_in(said: Said) -> list[str]:
    """The commands that a cause advises, as a user of this folder types them."""
    help = (_document(said).get("error") or {}).get("help", "")
    return [found.replace("MODULE:PIPELINE", "shop:orders") for found in COMMAND.findall(help)]


def missing_servers(kinds: Sequence[str]) -> list[str]:
    """What is needed for these, and is not installed."""
    needed = {SIDES[kind].needs for kind in kinds}
    return ["postgresql"] if "postgres" in needed and programs() is None else []
