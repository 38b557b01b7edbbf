"""Propose a suite from a sample: rules that the sample satisfies and that a person would think of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.delta.as_python import python_values
from tidegate.errors import Invalid
from tidegate.gates.expectations.yaml_lines import dump_yaml
from tidegate.records.place import Place, is_url

__all__ = ["profile", "read_sample"]

MAX_VALUES_OF_SET = 12
"""A text column with at most this many different values is taken for a closed set, if each value is frequent."""
MIN_ROWS = 50
"""With fewer rows, nothing is proposed about sets and uniqueness."""


def read_sample(place: Place, path: str, rows: int) -> Any:
    """Return the first rows of a Delta table, or of Parquet, CSV or JSON files, as an Arrow table."""
    import pyarrow as pa

    sample_path = Path(place.url(path))
    if is_url(place.url(path)) or not sample_path.exists():
        raise Invalid(
            f"there is no sample {place.url(path)} on this machine",
            expected="a file, a folder of files, or a Delta table",
            help="copy some of it here",
            reason="BAD_SAMPLE",
        )
    try:
        table = _read_table(sample_path)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise Invalid(
            f"{sample_path} cannot be read: {str(error).splitlines()[0]}",
            expected="a Delta table, or files that end in .parquet, .csv, .json or .jsonl",
            help="name one file, or a folder of files of one kind",
            reason="BAD_SAMPLE",
        ) from error
    return table.slice(0, rows)


def _read_table(sample_path: Path) -> Any:
    import pyarrow as pa

    if (sample_path / "_delta_log").is_dir():
        from deltalake import DeltaTable

        return DeltaTable(str(sample_path)).to_pyarrow_table()
    files = sorted(path for path in sample_path.rglob("*") if path.is_file()) if sample_path.is_dir() else [sample_path]
    tables = [_read_file(path) for path in files if not path.name.startswith((".", "_"))]
    if not tables:
        raise ValueError("no file is in it")
    return pa.concat_tables(tables, promote_options="default")


def _read_file(path: Path) -> Any:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path)
    if path.suffix == ".csv":
        import pyarrow.csv

        return pyarrow.csv.read_csv(path)
    if path.suffix in (".json", ".jsonl", ".ndjson"):
        import pyarrow.json

        return pyarrow.json.read_json(path)
    raise ValueError(f"{path.name} is of no known kind")


def profile(name: str, table: Any) -> str:
    """Return the proposed suite as YAML."""
    if not table.num_rows:
        raise Invalid("the sample has no rows", help="take one that has", reason="BAD_SAMPLE")
    rules = [{"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}, "severity": "warning"}]
    for column in table.column_names:
        rules += _column_rules(column, table[column])
    head = f"# Proposed from a sample of {table.num_rows:,} rows, which it fits. You know better what must hold.\n"
    return head + dump_yaml({"name": name, "expectations": rules})


def _column_rules(name: str, values: Any) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, nulls = len(values), values.null_count
    if not nulls:
        yield _rule("expect_column_values_to_not_be_null", column=name)
    elif nulls < rows / 2:
        yield _rule(
            "expect_column_values_to_not_be_null", column=name, mostly=math.floor(100 * (1 - nulls / rows)) / 100
        )
    present = values.drop_null()
    if not len(present) or pa.types.is_nested(values.type):
        return
    text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if rows >= MIN_ROWS and not nulls and (text or pa.types.is_integer(values.type)):
        distinct = pc.count_distinct(present).as_py()
        if distinct == rows:
            yield _rule("expect_column_values_to_be_unique", column=name)
            return
        if text and distinct <= MAX_VALUES_OF_SET and rows / distinct >= 10:
            yield _rule(
                "expect_column_values_to_be_in_set", column=name, value_set=sorted(python_values(pc.unique(present)))
            )
            return
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        minimum = pc.min_max(present).as_py()["min"]
        if minimum is not None and minimum >= 0:
            yield _rule("expect_column_values_to_be_between", column=name, min_value=0)


def _rule(type: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": type, "kwargs": kwargs}
