"""What a checkpoint costs when much is behind its pipeline: landed files, checkpoints, intervals, files of tables.

The control plane only: no Spark, and no rows. Each world is measured in turn with one of a tenth of its size, and in a
bucket the requests of one checkpoint are counted by the server.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from tests.bench import ledger, scale_requests, scale_worlds
from tests.bench.harness import Budget, Options, Result
from tests.bench.scale_worlds import WORLDS, ScaledPipeline
from tidegate.records import records
from tidegate.records.codec import sha256

WARMUPS = 1


def run(options: Options) -> Result:
    seconds: dict[str, float] = {}
    growth: dict[str, float] = {}
    wrong: list[str] = []
    for name, (kind, full, quick) in WORLDS.items():
        size = options.size(full, quick)
        large, small = (world(options, name, kind, each) for each in (size, size // 10))
        rounds = scale_worlds.measure(large, small, WARMUPS, options.pairs)
        for part in rounds[0][0]:
            seconds[part] = statistics.median(ours[part] for ours, _ in rounds)
            growth[part] = statistics.median(ours[part] / tenth[part] for ours, tenth in rounds)
        wrong += [f"{name}: {what}" for what in (*large.wrong, *small.wrong)]
    requests = scale_requests.in_fresh_process(rounds=options.size(3, 1))
    wrong += requests["wrong"]
    return Result(
        "scale",
        ours_s=max(seconds.values()),
        pairs=options.pairs,
        equal=not wrong,
        wrong="; ".join(wrong[:5]),
        keys={
            "trigger_s": max(seconds.values()),
            "growth": max(growth.values()),
            "requests": sum(requests["by_method"].values()),
            "parts": seconds,
            "growths": growth,
            "requests_by_method": requests["by_method"],
            "requests_by_step": requests["by_step"],
        },
        budgets=(Budget("trigger_s", 2.0), Budget("growth", 12.0), Budget("requests", 60)),
    )


def world(options: Options, name: str, kind: type[ScaledPipeline], size: int) -> ScaledPipeline:
    """Most are made once, and found again by later runs, which have made some more checkpoints."""
    if not kind.lasting:
        folder = options.folder(f"scale-{name}-{size}")
        kind.made(folder, size)
        return kind(folder)
    sources = (scale_worlds.__file__, ledger.__file__, records.__file__)
    made_by = sha256(b"".join(Path(source).read_bytes() for source in sources))[:8]
    return kind(options.cached(f"scale-{name}-{size}-{made_by}", lambda folder: kind.made(folder, size)))
