"""The table and the plot of the race, from the files of its queries, into docs/benchmarks.md and docs/images.

    python -m tests.bench.nexmark_report [build/bench/nexmark/1000000-10]

With `--out FOLDER` they are written there, as nexmark.md and nexmark.svg, and the documentation stays as it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.nexmark.playing import NAMES

__all__ = ["figures", "plot", "tables", "told", "write"]

ROOT = Path(__file__).resolve().parents[2]
PAGE, PLOT = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "images" / "nexmark.svg"
BEGIN, END = "<!-- figures: python -m tests.bench.nexmark_report -->\n", "<!-- end of figures -->\n"
SIDES = {
    "ours": ("tidegate", "#00897b"),
    "streaming": ("Structured Streaming", "#e65100"),
    "streaming_append": ("Streaming, appending", "#ffcc80"),
    "flink_rocksdb": ("Flink, RocksDB", "#6a1b9a"),
    "flink_heap": ("Flink, heap", "#b39ddb"),
}
BAR, GAP, LEFT, WIDTH = 9, 10, 44, 900

Told = Mapping[str, Mapping[str, Any]]
"""What the files have, by query."""
Figures = dict[str, dict[str, dict[str, float]]]
"""By query and engine."""


def told(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what has been measured so far."""
    files = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def figures(queries: Told, checkpoints: int) -> Figures:
    """Return the medians of all rounds with so many checkpoints."""
    found: Figures = {}
    for name, query in queries.items():
        for side, each in query["sides"].items():
            rounds = each.get("rounds", {}).get(str(checkpoints))
            if not rounds or "failed" in each:
                continue
            medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
            medians["whole_s"] = each["start_s"] + each["first"]["seconds"]
            medians["whole_core_s"] = each["start_core_s"] + each["first"]["core_seconds"]
            found.setdefault(name, {})[side] = medians
    return found


def tables(queries: Told) -> str:
    """Return all figures in Markdown, and what is not there, with the reason."""
    if not queries:
        return "Nothing has been measured yet.\n"
    any_query = next(iter(queries.values()))
    cuts, events = any_query["cuts"], any_query["events"]
    many, one = figures(queries, cuts), figures(queries, 1)

    def both(each: Mapping[str, float]) -> str:
        return f"{each['seconds']:.3g}" + (f" ({each['core_seconds']:.3g})" if "core_seconds" in each else "")

    def whole(each: Mapping[str, float]) -> str:
        return f"{each['whole_s']:.3g} ({each['whole_core_s']:.3g})"

    def megabytes(each: Mapping[str, float]) -> str:
        return f"{each['megabytes']:.0f}"

    has_cores = any("core_seconds" in side for each in many.values() for side in each.values())
    what = "seconds (core-seconds)" if has_cores else "seconds"
    parts = [
        conditions(queries, events),
        table(f"{what}, {cuts} checkpoints", many, both, ("seconds", "core_seconds")),
        table(f"{what}, one checkpoint", one, both, ("seconds", "core_seconds")),
        table(
            f"seconds (core-seconds), cold, {cuts} checkpoints",
            many,
            whole,
            ("whole_s", "whole_core_s"),
        ),
        table(f"peak MB, {cuts} checkpoints", many, megabytes, ()),
        table("peak MB, one checkpoint", one, megabytes, ()),
        left_out(queries),
        completed(many),
    ]
    return "\n".join(part for part in parts if part)


def conditions(queries: Told, events: int) -> str:
    """Say when, where and of what the figures are."""
    rounds = [len(runs) for query in queries.values() for each in query["sides"].values() for runs in rounds_of(each)]
    commits = ", ".join(sorted({query["commit"] for query in queries.values()}))
    days = sorted({query["at"][:10] for query in queries.values()})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    load = max(query["load"] for query in queries.values())
    machine = ", ".join(sorted({query["machine"] for query in queries.values()}))
    changed = " (+: with changes)" if "+" in commits else ""
    counted = f"median of {min(rounds)}" if len(set(rounds)) == 1 else f"medians of {min(rounds)} to {max(rounds)}"
    return (
        f"{len(queries)} queries of {len(NAMES)}, {events:,} events, {when}, at {commits}{changed},\n"
        f"{machine}, {counted if rounds else 'no'} rounds, load at most {load:.1f}.\n"
    )


def rounds_of(side: Mapping[str, Any]) -> list[Any]:
    return list(side.get("rounds", {}).values())


def table(title: str, found: Figures, cell: Callable[[Mapping[str, float]], str], sums: Sequence[str]) -> str:
    """Return a row for each query, and the sum over those that all engines have; nothing if nothing was measured."""
    sides = sides_of(found)
    if not sides:
        return ""
    lines = [f"| {title} | {' | '.join(SIDES[side][0] for side in sides)} |", f"|{' --- |' * (len(sides) + 1)}"]
    for name, each in found.items():
        lines.append(f"| {name} | {' | '.join(cell(each[side]) if side in each else '–' for side in sides)} |")
    raced = [side for side in sides if side != "streaming_append"]  # a second way to write a few of the queries
    common = [each for each in found.values() if all(side in each for side in raced)]
    if sums and common:
        known = [key for key in sums if all(key in each[side] for each in common for side in raced)]
        totals = {side: {key: sum(each[side][key] for each in common) for key in known} for side in raced}
        cells = (cell(totals[side]) if side in totals else "–" for side in sides)
        lines.append(f"| all {len(common)} that each engine has | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def left_out(queries: Told) -> str:
    """Return a list of what has no figure, and why."""
    reasons: dict[str, list[str]] = {}
    for name, query in queries.items():
        for side, each in query["sides"].items():
            if why := each.get("cannot") or each.get("failed"):
                said = " ".join(str(why).split())[:200]
                reasons.setdefault(f"{SIDES[side][0]}: {said}", []).append(name)
    lines = [f"- {', '.join(names)}: {why}" for why, names in reasons.items()]
    missing = [name for name in NAMES if name not in queries]
    if missing:
        lines.append(f"- {', '.join(missing)}: not measured")
    return "\n".join(["Without a figure:", "", *lines]) + "\n" if lines else ""


def completed(found: Figures) -> str:
    """Say how many checkpoints Flink completed, which takes them by time."""
    counts = {side: [each[side]["checkpoints"] for each in found.values() if side in each] for side in sides_of(found)}
    said = [
        f"{SIDES[side][0]}: {min(each):.0f} to {max(each):.0f}"
        for side, each in counts.items()
        if "Flink" in SIDES[side][0]
    ]
    return (
        f"Checkpoints that were completed, by query, where they are taken by time: {'; '.join(said)}.\n" if said else ""
    )


def sides_of(found: Figures) -> list[str]:
    return [side for side in SIDES if any(side in each for each in found.values())]


def plot(found: Figures, title: str) -> str:
    """Return bars of the seconds of each query as an SVG."""
    sides = sides_of(found)
    most = max((each[side]["seconds"] for each in found.values() for side in each), default=1.0)
    scale = (WIDTH - LEFT - 60) / most
    group = BAR * len(sides) + GAP
    height = 40 + group * len(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"',
        ' font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for place, side in enumerate(sides):
        name, colour = SIDES[side]
        parts.append(f'<rect x="{LEFT + place * 150}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + place * 150 + 15}" y="17">{name}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="17" text-anchor="end">{title}</text>')
    for row, (query, each) in enumerate(found.items()):
        top = 32 + row * group
        parts.append(f'<text x="{LEFT - 8}" y="{top + group / 2}" text-anchor="end">{query}</text>')
        for place, side in enumerate(sides):
            if side not in each:
                continue
            seconds, y = each[side]["seconds"], top + place * BAR
            width = max(1.0, seconds * scale)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 1}" fill="{SIDES[side][1]}"/>')
            parts.append(f'<text x="{LEFT + width + 4:.1f}" y="{y + BAR - 1}" font-size="9">{seconds:.2g}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def drawn(queries: Told) -> str:
    """Return the plot of what has been measured, with most checkpoints."""
    cuts = next(iter(queries.values()))["cuts"]
    return plot(figures(queries, cuts), f"seconds, {cuts} checkpoints")


def write(folder: Path, queries: Told) -> None:
    """Write the tables and the plot into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nexmark.md").write_text(tables(queries))
    (folder / "nexmark.svg").write_text(drawn(queries))


def into_docs(queries: Told) -> None:
    """Write them where they are published."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n![Seconds of each query](images/nexmark.svg)\n\n{tables(queries)}\n{END}{after}")
    PLOT.write_text(drawn(queries))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.nexmark_report", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build/bench/nexmark/1000000-10")
    parser.add_argument("--out", type=Path, help="where to write nexmark.md and nexmark.svg, instead of the docs")
    given = parser.parse_args(arguments)
    queries = told(given.folder)
    if not queries:
        parser.error(f"there is no qN.json in {given.folder}: `make bench NAME=nexmark` writes them")
    if given.out is None:
        into_docs(queries)
    else:
        write(given.out, queries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
