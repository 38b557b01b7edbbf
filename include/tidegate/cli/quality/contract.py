"""`tidegate contract`: check a data contract, compare two versions of one, or start one from a pipeline's table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.output import Output
from tidegate.cli.running.spark_needs import provide_spark_needs
from tidegate.cli.targets import Target, open_target
from tidegate.config import Settings, load_settings
from tidegate.config.keys import duration_text
from tidegate.delta import Snapshot, locate, open_table
from tidegate.errors import Invalid, Rejected
from tidegate.gates import Expectations
from tidegate.gates.contracts.changes import changes_between
from tidegate.gates.contracts.document import ContractDocument, contract_path, read_contract, read_contract_text
from tidegate.gates.contracts.export import exported
from tidegate.gates.contracts.gate import ContractGate
from tidegate.gates.contracts.origin import ReadContract, read_for_table
from tidegate.gates.contracts.types import schema_mismatches
from tidegate.gates.expectations.gate import why_broken
from tidegate.gates.expectations.suite import Rule
from tidegate.pipeline.graph.graph import Graph
from tidegate.pipeline.graph.nodes import GateNode, SinkNode
from tidegate.records.place import Place
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["add_parser", "run"]

NO = 1


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "contract",
        help="data contracts: check, diff, export",
        description="Data contracts: files of the Open Data Contract Standard 3.",
        epilog="examples:\n  tidegate contract check contracts/orders.odcs.yaml\n"
        "  tidegate contract check contracts/orders.odcs.yaml jobs.orders:pipeline --sink orders\n"
        "  tidegate contract check contracts/orders.odcs.yaml --table tables/orders\n"
        "  tidegate contract diff contracts/orders.odcs.yaml new/orders.odcs.yaml\n"
        "  tidegate contract export jobs.orders:pipeline orders --write contracts/orders.odcs.yaml",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    check = verbs.add_parser(
        "check",
        help="read a contract as a gate does, strictly; and compare it with a sink, a source or a table",
        description="Read a contract as a gate does: what is unknown, and what cannot be judged, is reported with file "
        "and line. Then each rule is listed, with how it is judged. With --sink, --source or --table, the columns are "
        "compared with the contract's, and the rows of a Delta table are judged by its rules, as they are. The exit "
        "code is 1 if the contract is not kept.",
    )
    check.add_argument("contract", metavar="FILE", help="the contract")
    check.add_argument("pipeline", metavar="MODULE:PIPELINE", nargs="?", help="the code, for --sink and --source")
    check.add_argument("--schema", metavar="NAME", help="one of its schema objects (all)")
    of = check.add_mutually_exclusive_group()
    of.add_argument("--sink", metavar="NAME", help="what the pipeline publishes there, and its table")
    of.add_argument("--source", metavar="NAME", help="what the pipeline reads there")
    of.add_argument("--table", metavar="PATH", help="a Delta table")
    check.add_argument("--no-spark", action="store_true", help="start no Spark: no row is judged, no code is planned")
    diff = verbs.add_parser(
        "diff",
        help="what changes from one contract to another; exit code 1 if something breaks",
        description="List what changes from one version of a contract to another, and whether it breaks those who rely "
        "on it. Breaking are, for example, a property that is gone, another type, and another value of `required`. The "
        "exit code is 1 if anything breaks, otherwise 0.",
    )
    diff.add_argument("before", metavar="BEFORE", help="the contract as it is")
    diff.add_argument("after", metavar="AFTER", help="the contract as it will be")
    export = verbs.add_parser(
        "export",
        help="start a contract from what a pipeline publishes to a sink",
        description="Print a contract of what a pipeline publishes: the columns of the table, or of the stream before "
        "there is one, the key, the constraints, the suites that judge the rows directly before, and the promise.",
    )
    export.add_argument("pipeline", metavar="MODULE:PIPELINE", help="the code")
    export.add_argument("sink", metavar="SINK", help="the name of one of its sinks")
    export.add_argument("--write", metavar="FILE", help="write this file instead of printing it")


def run(args: argparse.Namespace, out: Output) -> int:
    return {"check": _check, "diff": _diff, "export": _export}[args.verb](args, out)


def _path(file: str, settings: Settings) -> Path:
    """Return a file of the working directory, or else of the project, where gates find contracts."""
    return Path(file) if Path(file).is_file() else contract_path(settings.place(), file)


# -- check ----------------------------------------------------------------------------------------------------


def _check(args: argparse.Namespace, out: Output) -> int:
    settings = load_settings(args.settings)
    text = read_contract_text(_path(args.contract, settings))
    document = read_contract(text, args.contract)
    _refuse_unclear(args, document)
    names = [args.schema] if args.schema else [schema.name for schema in document.schemas]
    keys = _keys(args)
    tables = [read_for_table(text, args.contract, name, keys=keys) for name in names]
    for table in tables:
        table.suite("all")
    comparison = _compare(args, tables[0], settings, out) if args.sink or args.source or args.table else None
    described: Json = {"contract": args.contract, "id": document.id, "version": document.version, **_documents(tables)}
    if comparison is not None:
        described |= {"kept": not comparison, "broken": comparison}
    out.document(described)
    for table in tables:
        if comparison is None:
            out.table(["rule", "judged", "severity", "line"], _rows(table), right=["line"], title=table.schema.name)
        if table.fresh_s is not None:
            out.line(f"Promised: at most {duration_text(table.fresh_s)} old")
        for name, why in table.rules.told_only:
            out.line(f"Not judged: {name}: {why}", "dim")
    out.line(f"{args.contract}: version {document.version}, {_count(tables)}, all understood")
    if comparison is None:
        return 0
    for problem in comparison:
        out.line(f"- {problem}")
    out.line("The contract is not kept." if comparison else "The contract is kept.", "bold")
    return NO if comparison else 0


def _refuse_unclear(args: argparse.Namespace, document: ContractDocument) -> None:
    """Raise Invalid for arguments that do not say what is to be compared."""
    if (args.sink or args.source) and not args.pipeline:
        what, help = "--sink and --source are parts of a pipeline", "name the code, such as jobs.orders:pipeline"
    elif args.pipeline and not (args.sink or args.source):
        what, help = f"{args.pipeline} may have several sinks and sources", "add --sink NAME or --source NAME"
    else:
        if args.sink or args.source or args.table or args.schema:
            document.schema(args.schema)
        return
    raise Invalid(what, expected="a pipeline, and the name of its sink or source", help=help, reason="BAD_ARGUMENT")


def _keys(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the columns by which the sink replaces rows."""
    if not args.sink:
        return ()
    graph = open_target(args.pipeline, args.settings, started=False).graph()
    return tuple(_sink(graph, args.sink).sink.upserts) if graph is not None else ()


@dataclass
class _Looks:
    """Looks at pipelines and tables, with a Spark session that is started when it is needed first."""

    settings: Settings
    out: Output
    resources: ExitStack

    @cached_property
    def spark(self) -> SparkSession:
        from tidegate.spark.errors import silence_pyspark
        from tidegate.spark.session import control_settings, session

        silence_pyspark()
        self.out.line("Starting Spark (--no-spark skips this) …", "dim")
        provide_spark_needs(self.settings, self.out)
        return self.resources.enter_context(session(control_settings(self.settings)))

    def stream(self, target: Target, name: str) -> Json:
        """Return the columns of a stream in Spark's JSON form. Raise Invalid if Spark cannot plan it."""
        from tidegate.execution.analysis import columns_of_streams, declaration_error

        coordinator = coordinator_of(target)
        base = target.ledger.view().last_completed if target.ledger.identity() is not None else None
        columns, errors = columns_of_streams(coordinator, self.spark, base)
        if name in columns:
            return columns[name]
        if errors:
            raise declaration_error(errors)
        raise Rejected(
            f"the columns of {name!r} are not known: its source has no input yet",
            expected="input, or a source with a declared schema",
            help="wait for input, or compare with the table: --table PATH",
            reason="NO_INPUT",
        )

    def broken_rules(self, table: ReadContract, snapshot: Snapshot) -> list[str]:
        """Return the rules that the rows of a table break now."""
        from tidegate.gates.judging.judge import judge
        from tidegate.spark.materialize import release

        suite = table.suite("all")
        if not suite.rules:
            return []
        rows = self.spark.read.format("delta").option("versionAsOf", snapshot.version).load(snapshot.location.url)
        private = [each.column for each in table.schema.properties]  # only counts are told
        judged = judge(suite, rows, private)
        for frame in judged.persisted:
            release(frame)
        return [f"{each.rule.name}: {why_broken(each)}" for each in judged.findings if not each.success]


def _compare(args: argparse.Namespace, table: ReadContract, settings: Settings, out: Output) -> list[str]:
    """Return all ways in which a sink, a source or a table does not keep the contract."""
    with ExitStack() as resources:
        if args.table:
            looks = _Looks(settings, out, resources)
            snapshot = open_table(locate(settings.place(), args.table))
            if snapshot is None:
                raise _no_table(settings.place(), args.table)
            return _of_table(table, snapshot, looks, judging=not args.no_spark)
        target = open_target(args.pipeline, args.settings, started=False)
        looks = _Looks(target.settings, out, resources)
        graph = target.graph()
        assert graph is not None
        problems: list[str] = []
        stream = args.source or _sink(graph, args.sink).input
        if args.source and args.source not in graph.sources:
            raise _unknown_name_error("source", args.source, graph.sources)
        if not args.no_spark:
            subject = f"source {args.source}" if args.source else f"what goes to sink {args.sink}"
            columns = looks.stream(target, stream)
            problems += [f"{subject}: {problem}" for problem in schema_mismatches(table.schema, columns)]
        if args.sink:
            node = _sink(graph, args.sink)
            location = node.sink.delta_table(coordinator_of(target).contexts(graph.sinks)[args.sink])
            snapshot = open_table(location) if location is not None else None
            if snapshot is not None:
                problems += _of_table(table, snapshot, looks, judging=not args.no_spark)
        return problems


def _of_table(table: ReadContract, snapshot: Snapshot, looks: _Looks, *, judging: bool) -> list[str]:
    problems = schema_mismatches(table.schema, snapshot.schema)
    if judging and not problems:
        problems = looks.broken_rules(table, snapshot)
    return [f"the table, version {snapshot.version}: {problem}" for problem in problems]


def _sink(graph: Graph | None, name: str) -> SinkNode:
    assert graph is not None
    if name not in graph.sinks:
        raise _unknown_name_error("sink", name, graph.sinks)
    return graph.sinks[name]


def _unknown_name_error(kind: str, name: str, known: Mapping[str, object]) -> Invalid:
    return Invalid(
        f"the pipeline has no {kind} {name!r}",
        expected=f"one of {', '.join(known)}" if known else f"a pipeline with a {kind}",
        help="correct the name",
        reason="BAD_ARGUMENT",
    )


def _no_table(place: Place, path: str) -> Invalid:
    return Invalid(
        f"no Delta table exists at {place.url(path)}",
        expected="a folder with a _delta_log, relative to the setting `data`",
        help="correct the path, or let a first checkpoint create the table",
        reason="NO_TABLE",
    )


def _documents(tables: list[ReadContract]) -> Json:
    return {
        "schemas": {
            table.schema.name: {
                "rules": [
                    {"rule": rule.name, "severity": rule.severity, "line": rule.line, "all_rows": rule.about_all_rows}
                    for rule in table.rules.rules
                ],
                "not_judged": [{"name": name, "why": why} for name, why in table.rules.told_only],
                "fresh_seconds": table.fresh_s,
            }
            for table in tables
        }
    }


def _rows(table: ReadContract) -> list[list[object]]:
    return [
        [rule.name, "over the table" if rule.about_all_rows else "row by row", rule.severity, rule.line]
        for rule in table.rules.rules
    ]


def _count(tables: list[ReadContract]) -> str:
    number = sum(len(table.rules.rules) for table in tables)
    return "1 rule" if number == 1 else f"{number} rules"


# -- diff -----------------------------------------------------------------------------------------------------


def _diff(args: argparse.Namespace, out: Output) -> int:
    settings = load_settings(args.settings)
    before, after = (
        read_contract(read_contract_text(_path(file, settings)), file) for file in (args.before, args.after)
    )
    changes = changes_between(before, after)
    breaking = sum(change.effect == "breaking" for change in changes)
    described = [{"path": each.path, "kind": each.kind, "effect": each.effect, "text": each.text} for each in changes]
    note = _note(before, after) if breaking else ""
    out.document({"breaking": bool(breaking), "changes": described, "note": note})
    out.table(["effect", "change"], [[change.effect, change.text] for change in changes])
    if breaking:
        out.line(f"Breaking: {breaking} of {len(changes)} changes.", "bold")
        if note:
            out.line(note)
        return NO
    out.line(f"Nothing breaks: {len(changes)} changes." if changes else "They promise the same.", "bold")
    return 0


def _note(before: ContractDocument, after: ContractDocument) -> str:
    """Return what the versions should be, if they do not say that something breaks."""
    old, new = before.version.partition(".")[0], after.version.partition(".")[0]
    if old != new:
        return ""
    return f"Version {after.version} after {before.version} promises that nothing breaks: raise the first number."


# -- export ---------------------------------------------------------------------------------------------------


def _export(args: argparse.Namespace, out: Output) -> int:
    target = open_target(args.pipeline, args.settings, started=False)
    graph = target.graph()
    assert graph is not None
    node = _sink(graph, args.sink)
    file = args.write or f"contracts/{args.sink}.odcs.yaml"
    location = node.sink.delta_table(coordinator_of(target).contexts(graph.sinks)[args.sink])
    snapshot = open_table(location) if location is not None else None
    with ExitStack() as resources:
        if snapshot is not None:
            columns = snapshot.schema
        else:
            columns = _Looks(target.settings, out, resources).stream(target, node.input)
    text = exported(
        args.sink,
        columns,
        file=file,
        pipeline=graph.name,
        key=node.sink.upserts,
        properties=snapshot.configuration if snapshot is not None else None,
        rules=_rules_before(graph, node, target.settings.place()),
        fresh_s=graph.promises.get(args.sink),
        description=str(snapshot.handle.metadata().description or "") if snapshot is not None else "",
    )
    read_for_table(text, file, args.sink).suite("all")  # never write a contract that cannot be read
    out.document({"file": args.write, "yaml": text})
    if args.write is None:
        out.line(text)
        return 0
    _write(Path(args.write), text)
    out.line(f"Written: {args.write}")
    out.line(f'Use it:  stream.sink("{args.sink}", …, contract=Contract("{args.write}"))', "dim")
    return 0


def _rules_before(graph: Graph, node: SinkNode, place: Place) -> list[Rule]:
    """Return the rules of the suites that judge the rows directly before a sink. Those about the table come first."""
    stages = {stage.name: stage for stage in graph.stages}
    rules: list[Rule] = []
    stage = stages.get(node.input)
    while isinstance(stage, GateNode):
        gate = stage.gate
        if isinstance(gate, Expectations) and not isinstance(gate, ContractGate) and not gate.modules:
            rules += gate.load(place).rules
        stage = stages.get(stage.input)
    return rules


def _write(path: Path, text: str) -> None:
    """Write the file, unless it exists already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Rejected(
            f"{path} already exists",
            expected="a new file",
            help="choose another name, and compare the two: `tidegate contract diff`",
            reason="THERE",
        ) from None
