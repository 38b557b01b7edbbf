"""The table and the plot of the race: python -m tests.bench.nexmark_report build/bench/nexmark.json"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["plot", "table", "write"]

SIDES = {
    "ours": ("tidegate", "#00897b"),
    "streaming": ("Structured Streaming", "#e65100"),
    "flink_rocksdb": ("Flink, RocksDB", "#6a1b9a"),
    "flink_heap": ("Flink, heap", "#b39ddb"),
}
KEYS = {"seconds": "seconds", "core_seconds": "core-seconds", "megabytes": "peak MB"}
BAR, GAP, LEFT, WIDTH = 9, 10, 44, 900


def write(folder: Path, told: Mapping[str, Any]) -> None:
    """Write the table and the plot of what was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes = [key for key in told if key.startswith("from_")]
    text = "\n".join(table(told[shape], key, shape) for shape in shapes for key in KEYS)
    (folder / "nexmark.md").write_text(text)
    (folder / "nexmark.svg").write_text(plot(told[shapes[0]], shapes[0]))


def table(figures: Mapping[str, Any], key: str, shape: str) -> str:
    """Return a table of one figure in Markdown: a row for each query, and the sum over those that all sides have."""
    sides = [side for side in SIDES if any(side in each for each in figures.values())]
    head = [f"{KEYS[key]}, {shape.replace('_', ' ')}", *(SIDES[side][0] for side in sides)]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for name, each in figures.items():
        cells = [f"{each[side][key]:.3g}" if side in each else "–" for side in sides]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if key != "megabytes":
        common = [each for each in figures.values() if all(side in each for side in sides)]
        sums = [f"{sum(each[side][key] for each in common):.4g}" for side in sides]
        lines.append(f"| all that have four figures, {len(common)} | {' | '.join(sums)} |")
    return "\n".join(lines) + "\n"


def plot(figures: Mapping[str, Any], shape: str) -> str:
    """Return bars of the seconds of each query as an SVG."""
    sides = [side for side in SIDES if any(side in each for each in figures.values())]
    most = max((each[side]["seconds"] for each in figures.values() for side in each), default=1.0)
    scale = (WIDTH - LEFT - 60) / most
    group = BAR * len(sides) + GAP
    height = 40 + group * len(figures)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"',
        ' font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for place, side in enumerate(sides):
        name, colour = SIDES[side]
        parts.append(f'<rect x="{LEFT + place * 190}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + place * 190 + 15}" y="17">{name}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="17" text-anchor="end">seconds, {shape.replace("_", " ")}</text>')
    for row, (query, each) in enumerate(figures.items()):
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


if __name__ == "__main__":
    measured = Path(sys.argv[1])
    write(measured.parent, json.loads(measured.read_text()))
