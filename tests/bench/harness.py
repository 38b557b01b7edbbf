"""How everything is measured: in turn with its rival, on the same data, after a warm-up, and checked to be equal.

A bench is a module with `run(options) -> Result`. Timing never fails anything: budgets are printed as within or
over. What fails is a result that differs from the rival's, or from what must come out.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    quick: bool = False
    """Tiny sizes, to see that a bench still works; its figures mean nothing."""
    pairs: int = 5
    spark: str = "local"
    """local: in this process. connect: on the embedded server, as pipelines run by default."""
    out: Path = ROOT / "build" / "bench"

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def folder(self, name: str) -> Path:
        """An empty folder for what a bench makes; on the disk that the checkout lies on."""
        folder = self.out / "data" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def cached(self, name: str, make: Callable[[Path], None]) -> Path:
        """A folder that is expensive to make and never changed: made once, found again by later runs."""
        folder = self.out / "data" / ("quick" if self.quick else "full") / name
        if not folder.exists():
            aside = folder.with_name(f"{name}.making")
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            make(aside)
            aside.rename(folder)
        return folder


@dataclass(frozen=True)
class Budget:
    """What design asks of one key of the result: at most `limit`."""

    key: str
    limit: float


@dataclass(frozen=True)
class Result:
    """One line of JSON. `keys` are the bench's own, in the order in which they are shown."""

    bench: str
    ours_s: float
    pairs: int
    rival_s: float | None = None
    ratio: float | None = None
    equal: bool = True
    keys: Mapping[str, Any] = field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()
    wrong: str = ""
    """If not equal: what differs."""

    def line(self) -> dict[str, Any]:
        always = {"bench": self.bench, "ours_s": self.ours_s, "pairs": self.pairs}
        rival = {"rival_s": self.rival_s, "ratio": self.ratio} if self.ratio is not None else {}
        return always | rival | {"equal": self.equal} | dict(self.keys)


@dataclass(frozen=True)
class Pairs:
    """Seconds of ours and the rival's, round by round."""

    ours: list[float]
    rival: list[float]

    @property
    def ratios(self) -> list[float]:
        return [ours / rival for ours, rival in zip(self.ours, self.rival, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def spread(self) -> list[float]:
        """The lowest and the highest ratio: far apart means that the machine was busy."""
        return [min(self.ratios), max(self.ratios)]


@dataclass(frozen=True)
class Turns:
    """Rounds in which all sides took their turn: for each side, seconds by the clock and of processor time.

    Processor time is that of this process and its children. On a busy machine it says more than the clock; it
    knows nothing of waiting, though, above all not for disks.
    """

    rounds: list[list[tuple[float, float]]]

    def wall(self, rival: int = 1) -> Pairs:
        return self._pairs(0, rival)

    def core(self, rival: int = 1) -> Pairs:
        return self._pairs(1, rival)

    def _pairs(self, what: int, rival: int) -> Pairs:
        return Pairs([sides[0][what] for sides in self.rounds], [sides[rival][what] for sides in self.rounds])


def in_turn(
    *sides: Callable[[int], Any], warmups: int, pairs: int, before: Callable[[int], Any] = lambda number: None
) -> Turns:
    """A B A B …, ours first: each is called with the number of the round, the first `warmups` do not count.

    before: what a round needs, made outside of the time. Of a callable that returns a number, that many seconds
    count; of others all of their time.
    """
    rounds = []
    for number in range(warmups + pairs):
        before(number)
        rounds.append([measured(side, number) for side in sides])
    return Turns(rounds[warmups:])


def measured(do: Callable[..., Any], *args: Any) -> tuple[float, float]:
    """Seconds by the clock (or what the call returned), and seconds of processor time."""
    cores, began = core_seconds(), time.perf_counter()
    said = do(*args)
    wall = said if isinstance(said, float) else time.perf_counter() - began
    return wall, core_seconds() - cores


def timed(do: Callable[..., Any], *args: Any) -> float:
    """Seconds that a call took, or the seconds that it returned."""
    return measured(do, *args)[0]


def core_seconds(root: int | None = None) -> float:
    """Processor time of a process and all below it, so far: of this one, or of the one with the pid `root`.

    Where /proc does not tell: of this process alone, and 0 of another.
    """
    ticks, pending = 0, [root or os.getpid()]
    while pending:
        pid = pending.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            children = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        except OSError:
            if pid == os.getpid():
                return time.process_time()
            continue
        ticks += sum(map(int, fields[11:15]))
        pending += [int(child) for listed in children for child in listed.split()]
    return ticks / os.sysconf("SC_CLK_TCK")


def median_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each part over all rounds."""
    return {name: statistics.median(each.get(name, 0.0) for each in rounds) for name in rounds[0]}


def load_average() -> float:
    """How many processes wanted a core during the last minute: above the number of cores, distrust seconds."""
    return os.getloadavg()[0]


def rounded(value: Any) -> Any:
    """Figures with as many digits as mean something."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def report(result: Result, options: Options, console: Console) -> Path:
    """A table for people, one line of JSON for programs."""
    from rich.table import Table

    line = rounded(result.line()) | {"quick": options.quick, "cores": os.cpu_count(), "load": load_average()}
    limits = {budget.key: budget.limit for budget in result.budgets}
    title = f"{result.bench}{' (quick: figures mean nothing)' if options.quick else ''}"
    table = Table("key", "value", "budget", title=title, title_justify="left")
    for key, value in line.items():
        if key != "bench":
            table.add_row(key, _text(value), _verdict(value, limits.get(key)))
    console.print(table)
    if not result.equal:
        console.print(f"{result.bench}: not equal: {result.wrong}", style="red", markup=False)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{result.bench}.json"
    path.write_text(json.dumps(line) + "\n")
    return path


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name} {_text(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " to ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _verdict(value: Any, limit: float | None) -> str:
    if limit is None:
        return ""
    return f"[green]within {limit:g}" if value <= limit else f"[red]over {limit:g}"
