"""Corrections of quarantined rows on the command line: how they are written, checked, and shown beforehand."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.checkpoint.quarantine_requests import late_limits, verdict_of_gate
from tidegate.cli.inspect.read import format_value
from tidegate.cli.output import Output
from tidegate.cli.targets import Target
from tidegate.connectors.source import SourceContext
from tidegate.delta.as_python import json_value
from tidegate.errors import Invalid, Rejected
from tidegate.gates import Expectations
from tidegate.gates.base import Gate, GateContext
from tidegate.gates.contracts.gate import described_gate
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine.expressions import refuse_expressions
from tidegate.gates.quarantine.forecast import Forecast, predictable_takers
from tidegate.gates.quarantine.preview import Preview, preview
from tidegate.gates.quarantine.reader import QuarantinedRows
from tidegate.gates.quarantine.table import QuarantineSink, quarantine_name
from tidegate.gates.row_rules import RowRules
from tidegate.records.records import Json, Request
from tidegate.spark.session import control_settings, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Correction", "Outlook", "correction", "preview_request", "refuse_failing_sql", "refuse_without_rules"]

SAMPLES = 5
"""Rows to show that would continue, and that would stay."""


@dataclass(frozen=True)
class Correction:
    """The argument of `--set`."""

    column: str
    value: str
    is_sql: bool

    @property
    def word(self) -> str:
        """The argument as it is written."""
        if self.is_sql:
            return f"{self.column} = {self.value}"
        return f"{self.column}={self.value}"


def correction(text: str) -> Correction:
    """Read the argument of `--set`. With spaces around the equals sign it is SQL, as in an UPDATE, and without them a
    constant."""
    column, equals, value = text.partition("=")
    if not equals or not column.strip():
        raise argparse.ArgumentTypeError(
            f'{text!r} is neither COLUMN=VALUE, a constant, nor "COLUMN = SQL", an expression over the row'
        )
    spaces = column.endswith(" "), value.startswith(" ")
    if spaces == (False, False):
        return Correction(column, value, False)
    if spaces == (True, True) and value.strip():
        return Correction(column.strip().strip("`"), value.strip(), True)
    name, constant = column.strip(), value.strip()
    raise argparse.ArgumentTypeError(
        f"{text!r} could mean two things. For a constant, write no space on either side of the equals sign: "
        f'--set {name}={constant or "VALUE"}. For SQL, write one on both sides: --set "{name} = {constant or "SQL"}"'
    )


@dataclass(frozen=True)
class Outlook:
    """What a request that corrects or judges rows would do now."""

    preview: Preview
    forecast: Forecast
    """The same in the form in which releases of rows as they are are predicted."""
    unjudged: str = ""
    """Why the gate's rules could not be applied here, or "". The checkpoint applies them."""

    def document(self) -> Json:
        """Return it for scripts."""
        preview = self.preview
        samples = []
        for sample in preview.samples:
            samples.append(
                {
                    "id": sample.id,
                    "rules": list(sample.rules),
                    "before": json_value(sample.before),
                    "after": json_value(sample.after),
                    "stays": sample.stays,
                }
            )
        return {
            "changed": preview.changed,
            "to_null": dict(preview.to_null),
            "rules": dict(preview.rules),
            "rules_after": dict(preview.rules_after),
            "not_judged": self.unjudged,
            "failed": preview.failed,
            "error": preview.error,
            "samples": samples,
        }

    def show(self, request: Request, out: Output) -> None:
        """Print it for people."""
        preview = self.preview
        if request.corrects:
            nulls = "".join(f"; {name} becomes null in {rows:,}" for name, rows in preview.to_null.items())
            out.line(f"{preview.changed:,} of {preview.rows:,} rows change{nulls}.")
            self._show_rows(request, out)
            if preview.error:
                failed = f"{preview.failed:,} of the rows"
                out.line(f"SQL fails for {failed}, for one of them with: {preview.error}", "yellow")
        if request.action == "rejudge":
            names = dict.fromkeys([*preview.rules, *preview.rules_after])
            out.table(
                ["rule", "rows that broke it", "rows that break it now"],
                [[name, preview.rules.get(name, 0), preview.rules_after.get(name, 0)] for name in names],
                right=["rows that broke it", "rows that break it now"],
            )
        if self.unjudged:
            out.line(f"- the gate's rules are not applied here, but by the checkpoint: {self.unjudged}", "yellow")

    def _show_rows(self, request: Request, out: Output) -> None:
        corrected = [*request.correct, *request.correct_sql]
        sql = " ".join(request.correct_sql.values())
        if self.preview.samples:
            columns = list(self.preview.samples[0].before)
        else:
            columns = []
        read = [name for name in columns if name not in corrected and _is_named_in(sql, name)]
        heads = []
        for name in corrected:
            heads += [name, f"{name} becomes"]
        rows = []
        for sample in self.preview.samples:
            values = [format_value(sample.before[name]) for name in read]
            for name in corrected:
                values += [format_value(sample.before[name]), format_value(sample.after[name])]
            rows.append([sample.id[:8], *values, f"stays: {sample.stays}" if sample.stays else "continues"])
        out.table(["row", *read, *heads, "result"], rows)


def _is_named_in(sql: str, column: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", sql) is not None


def refuse_failing_sql(request: Request, outlook: Outlook) -> None:
    """Raise Invalid if a request's SQL fails for all of its rows: it would release none."""
    preview = outlook.preview
    if preview.failed and preview.failed == preview.rows:
        raise Invalid(
            f"{', '.join(request.corrections)} fails for all {preview.rows:,} rows, "
            f"for one of them with: {preview.error}",
            expected="SQL that corrects at least one of the rows",
            help="correct the SQL; `--dry-run` shows what it makes of a few rows",
            reason="BAD_SQL",
        )


def preview_request(target: Target, quarantine: QuarantinedRows, request: Request) -> Outlook:
    """Check a request's SQL, and return what the request would do. Needs Spark."""
    with session(control_settings(target.settings)) as spark:
        rows = _read(target, quarantine.gate, spark)
        fields = [field for field in rows.schema.fields if field.name not in q.OWN_COLUMNS]
        refuse_expressions(spark, fields, request.correct_sql)
        takers, sentences = predictable_takers(quarantine.types, late_limits(target.ledger, quarantine.gate))
        row_rules, unjudged = _row_rules(target, quarantine.gate, rows.select([field.name for field in fields]))
        found = preview(rows, request, [taker for taker, _ in takers], row_rules, SAMPLES)
    unpredictable = len(sentences) > len(takers) or bool(unjudged)
    return Outlook(found, Forecast(found.rows, found.stays, sentences, None, unpredictable), unjudged)


def _read(target: Target, gate: str, spark: SparkSession) -> DataFrame:
    """Return the quarantine's rows as they are now."""
    place = target.settings.place()
    context = SourceContext(target.name, quarantine_name(gate), place, target.ledger)
    source = QuarantineSink(gate).source(target.ledger.home)
    return source.read(spark, source.plan(None, context).splits, context)


def refuse_without_rules(target: Target, gate: str) -> None:
    """Raise Rejected if the gate has no rules about single rows, so that it cannot judge a row again."""
    if _declared(target, gate) is None:
        raise Rejected(
            f"gate {gate!r} cannot judge rows again: it has no rules about single rows",
            expected="a gate of expectations, or one of your own with `row_rules`",
            help="if it is a gate of your own, name the code, as MODULE:pipeline; or release the rows as they "
            f"are, tidegate quarantine release {target.argument} {gate} --all",
            reason="NO_ROW_RULES",
        )


def _declared(target: Target, name: str) -> Gate | None:
    """Return the gate as the code declares it, else as the last checkpoint recorded it, if it has rules about single
    rows."""
    graph = target.sound_graph()
    if graph is not None:
        gates = [gated.gate for gated in graph.gates if gated.name == name]
        if gates and type(gates[0]).row_rules is not Gate.row_rules:
            return gates[0]
        return None
    verdict = verdict_of_gate(target.ledger, name)
    policy = verdict.policy if verdict is not None else {}
    if (contract := described_gate(policy)) is not None:
        return contract
    if not {"suite", "on_failure", "private"} <= policy.keys():
        return None
    suite, context = policy["suite"], policy.get("context")
    return Expectations(suite, context=context, on_failure=policy["on_failure"], private=policy["private"])


def _may_have_unrecorded_rules(target: Target, name: str) -> bool:
    """Return whether the gate may have rules about single rows that are not recorded, as a gate of one's own may."""
    verdict = verdict_of_gate(target.ledger, name)
    return verdict is not None and {"suite", "contract"}.isdisjoint(verdict.policy)


def _row_rules(target: Target, name: str, rows: DataFrame) -> tuple[Callable[[], RowRules | None], str]:
    """Return the rules about single rows of today's suite, and why they could not be read, or ""."""
    gate, place = _declared(target, name), target.settings.place()
    context = GateContext(target.name, name, place)
    if gate is None and target.pipeline is None and _may_have_unrecorded_rules(target, name):
        return lambda: None, "only the pipeline's code has them; name it as MODULE:pipeline"
    try:
        rules = gate.row_rules(rows, context) if gate is not None else None
    except Invalid as error:
        return lambda: None, error.what
    return lambda: rules, ""
