"""What a state of terabytes is made of: its files, what a lookup opens, what merging rewrites. On paper, but with the
code that chooses what is merged.

Only numbers of rows are moved, so that 10 TB take a minute. Ranges of key groups are alike, so a few of them are
followed, with their share of what a checkpoint may rewrite. First every checkpoint adds keys until all are there, then
it changes some, chosen evenly.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest import mock

import msgspec

from tests.bench.formula import table, write
from tests.bench.harness import Options, Result
from tidegate.delta import StagedFile
from tidegate.state import compaction
from tidegate.state.keyed import MIN_WRITTEN_PARTITIONS, SPLIT_ROWS
from tidegate.state.record import StateFile

BYTES_PER_ROW = 100
"""Compressed. A count per key takes a tenth of that; a list of what happened takes more."""
SIZES = {"100 GB": 10**9, "1 TB": 10**10, "10 TB": 10**11}
"""Rows, one per key."""
FILLS = 4_000
"""In so many checkpoints all keys come."""
CHANGES = 1_000
"""So many more change as many keys each."""
FOLLOWED = 4
STATS = (
    '{"numRecords":123456789,"minValues":{"customer_id":123456789012,"_group":12},"maxValues":{"customer_id":'
    '123456789999,"_group":12},"nullCount":{"customer_id":0,"_group":0,"spent":12}}'
)


def run(options: Options) -> Result:
    shorter = options.size(1, 40)
    states = {name: made(rows // shorter, FILLS // shorter, CHANGES // shorter) for name, rows in SIZES.items()}
    wrong = [f"{name}: {state.rows} rows of {state.keys} keys" for name, state in states.items() if not state.sound]
    keys = {name: state.told() for name, state in states.items()}
    return Result("large_state", ours_s=0.0, pairs=len(states), equal=not wrong, wrong="; ".join(wrong), keys=keys)


@dataclass
class State:
    """A few ranges of key groups of a state."""

    keys: int
    """In one range."""
    ranges: int
    """How many of them there are in all."""
    changed: int
    """Rows of one checkpoint, in one range."""
    filled_by: int
    """Until this checkpoint all keys are new."""
    files: list[StateFile] = field(default_factory=list)
    rewritten: list[int] = field(default_factory=list)
    """Rows of the followed ranges, by checkpoint."""

    @property
    def followed(self) -> int:
        return min(FOLLOWED, self.ranges)

    @property
    def scale(self) -> float:
        return self.ranges / self.followed

    @property
    def rows(self) -> int:
        return sum(file.file.rows for file in self.files)

    @property
    def sound(self) -> bool:
        """No key got lost."""
        return self.rows >= self.keys * self.followed

    def checkpoint(self, number: int) -> None:
        """Add a file to each range, and merge what is due."""
        self.files += [file_of(number, number, self.changed, at) for at in range(self.followed)]
        batches = compaction.to_merge(self.files)
        merged = {id(file) for batch in batches for file in batch.files}
        self.files = [file for file in self.files if id(file) not in merged]
        for batch in batches:
            by_range: dict[int, list[StateFile]] = defaultdict(list)
            for file in batch.files:
                by_range[file.groups[0]].append(file)
            self.files += [self._merged(files, at) for at, files in by_range.items()]
        self.rewritten.append(sum(batch.rows for batch in batches))

    def _merged(self, files: Sequence[StateFile], at: int) -> StateFile:
        new = sum(file.file.rows for file in files if file.checkpoint <= self.filled_by)
        changed = [file.file.rows for file in files if file.checkpoint > self.filled_by]
        oldest, newest = min(file.oldest for file in files), max(file.checkpoint for file in files)
        return file_of(newest, oldest, distinct(new, changed, self.keys), at)

    def told(self) -> dict[str, float]:
        """What the whole state has of everything, at its end and in the last half of the checkpoints."""
        late = self.rewritten[len(self.rewritten) // 2 :]
        record = sum(len(msgspec.json.encode(file)) for file in self.files)
        depth = len(self.files) / self.followed
        return {
            "changed_million_rows": round(self.changed * self.ranges / 1e6, 2),
            "files": round(len(self.files) * self.scale),
            "above_one_another": round(depth, 1),
            "rows_per_key": round(self.rows / self.keys / self.followed, 2),
            "largest_file_gb": round(max(file.file.rows for file in self.files) * BYTES_PER_ROW / 1e9, 2),
            "rewritten_per_changed": round(statistics.mean(late) / self.changed / self.followed, 1),
            "most_rewritten_million_rows": round(max(late) * self.scale / 1e6),
            "record_mb": round(record * self.scale / 1e6, 1),
        }


def made(keys: int, fills: int, changes: int) -> State:
    """Fill a state with so many keys, then change them.

    Workers split what is changed into as many ranges as state/keyed.py does, with partitions and key groups to spare.
    """
    ranges = max(MIN_WRITTEN_PARTITIONS, keys // fills // SPLIT_ROWS)
    changed = keys // ranges // fills
    state = State(changed * fills, ranges, changed, fills)
    with mock.patch.object(compaction, "MERGED_ROWS", round(compaction.MERGED_ROWS / state.scale)):
        for number in range(1, fills + changes + 1):
            state.checkpoint(number)
    return state


def distinct(new: int, changed: Sequence[int], keys: int) -> int:
    """Return about how many keys are in files: of so many that are different, and others, each chosen evenly."""
    left = math.prod(1 - min(rows / keys, 1) for rows in changed)
    return max([new, *changed, round(keys - (keys - new) * left)])


def file_of(newest: int, oldest: int, rows: int, at: int) -> StateFile:
    name = f"tidegate/0123456789abcdef-state.totals/{newest:08}/0123456789abcdef/{at:05}-000012.parquet"
    staged = StagedFile(path=name, size=rows * BYTES_PER_ROW, rows=rows, stats=STATS)
    return StateFile(file=staged, checkpoint=newest, oldest=oldest, groups=(at, at))


def main() -> None:
    """Write what comes out into the document."""
    result = run(Options())
    assert result.equal, result.wrong
    names = {
        "changed_million_rows": "million rows changed",
        "files": "files",
        "above_one_another": "above one another",
        "rows_per_key": "rows per key",
        "largest_file_gb": "largest file, GB",
        "rewritten_per_changed": "rows rewritten per changed one",
        "most_rewritten_million_rows": "most in one checkpoint, million",
        "record_mb": "MB in each ack",
    }
    rows = [[size, *(f"{told[key]:,}" for key in names)] for size, told in result.keys.items()]
    lines = table(("state", *names.values()), rows)
    print("\n".join(lines))
    write(lines)


if __name__ == "__main__":
    main()
