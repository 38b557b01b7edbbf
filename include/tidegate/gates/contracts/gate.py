"""The gates of a data contract: its schema, and its rules as expectations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from tidegate.connectors.sink import TableDescription
from tidegate.errors import Invalid
from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement, Policy
from tidegate.gates.contracts.document import every_property
from tidegate.gates.contracts.origin import ContractSuite, JudgedRules, ReadContract
from tidegate.gates.contracts.types import schema_mismatches
from tidegate.gates.expectations.gate import Expectations
from tidegate.records.names import listed
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.spark.materialize import materialize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Contract", "ContractGate", "ContractOverTable", "described_gate"]

SENSITIVE = frozenset(
    {"pii", "personal", "personal_data", "confidential", "restricted", "sensitive", "secret", "highly confidential"}
)
"""Classifications of columns whose values must not be shown."""


class ContractGate(Expectations):
    """What the gates of a contract have in common."""

    origin: ContractSuite

    def __init__(
        self,
        path: str,
        schema: str | None,
        judged: JudgedRules,
        without: Sequence[str],
        on_failure: Policy | Mapping[str, Policy],
        at_most: float,
        private: Sequence[str],
        hold_for: float | str | None,
        unanswered: Literal["approve", "reject"],
    ) -> None:
        self.modules = ()
        self.origin = ContractSuite(path, schema, judged, tuple(listed(without)))
        self.suite = self.origin.name
        self.on_failure = on_failure
        self.at_most = at_most
        self.private = tuple(listed(private))
        self.over: str | None = None
        self.keys: tuple[str, ...] = ()
        self.hold_for = hold_for
        self.unanswered = unanswered

    def contract(self, place: Place) -> ReadContract:
        """Return the contract as it is now. Raise Invalid with all problems of it."""
        return self.origin.contract(self.origin.read(place), place)

    def contract_for(self, context: GateContext) -> ReadContract:
        """Return the contract that the plan has fixed."""
        if context.planned_inputs is None:
            return self.contract(context.place)
        return self.origin.contract(context.planned_inputs[0]["suite"], context.place)

    def private_columns(self, context: GateContext) -> tuple[str, ...]:
        properties = self.contract_for(context).schema.properties
        classified = [each.column for each in properties if each.classification.strip().casefold() in SENSITIVE]
        return (*self.private, *classified)

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        contract = self.contract_for(context)
        if contract.suite(self.origin.judged).rules:
            judgement = super().judge(frame, context)
        else:
            frame = materialize(frame)
            judgement = Judgement(frame.count(), (), {"success": True}, None, (frame,), frame)
        return replace(judgement, results=judgement.results | {"meta": self._contract_facts(contract)})

    def _contract_facts(self, contract: ReadContract) -> Json:
        """Return what a verdict's findings say about the contract."""
        document = contract.document
        told = [f"{name}: {why}" for name, why in contract.rules.told_only]
        return {"contract": {"id": document.id, "version": document.version}, "not_judged": told}


class Contract(ContractGate):
    """Judge rows by a data contract: a file of the Open Data Contract Standard 3.

        checked = orders.gate(Contract("contracts/orders.odcs.yaml", on_failure="quarantine"))

    The rows must have the contract's columns with their types. What the contract says about single rows (`required`,
    patterns, ranges, metrics that must be 0) is judged in every checkpoint. What it says about all rows of the table
    (`unique`, primary keys, shares, numbers of rows) needs `over`. Anything that cannot be judged is refused by name.

    path: the file, relative to the project.
    schema: the schema object to keep, if the contract has several.
    over: the path of the Delta table whose rows are judged together with the new ones, by the rules about all rows. A
        second gate does that, and reads the table in every checkpoint. Only new rows can go to quarantine.
    keys: with `over`, the columns by which new rows replace the table's rows, as in `DeltaUpsert(keys=…)`.
    per_checkpoint: in place of `over`, judge the rules about all rows among the rows of each checkpoint.
    extra: "allow" columns that the contract does not have, as the standard's tools do, or "refuse" them.
    without: the names of rules to leave out, such as "unique(order_id)"; "type(*)" stands for all that begin so.
    on_failure, at_most, hold_for, unanswered: as for `Expectations`. The severities are those of the contract's rules.
        Columns that are missing, or of another type, abort the checkpoint where bad rows would go to quarantine.
    private: columns whose values must not appear in verdicts, in addition to those that the contract classifies as
        confidential, restricted, personal or the like.
    """

    kind: ClassVar[str] = "contract"

    def __init__(
        self,
        path: str,
        *,
        schema: str | None = None,
        over: str | None = None,
        keys: Sequence[str] = (),
        per_checkpoint: bool = False,
        extra: Literal["allow", "refuse"] = "allow",
        without: Sequence[str] = (),
        on_failure: Policy | Mapping[str, Policy] = "abort",
        at_most: float = 1.0,
        private: Sequence[str] = (),
        hold_for: float | str | None = "1 day",
        unanswered: Literal["approve", "reject"] = "reject",
    ) -> None:
        options = (without, on_failure, at_most, private, hold_for, unanswered)
        judged: JudgedRules = "all" if per_checkpoint else "rows"
        super().__init__(path, schema, judged, *options)
        self.extra = extra
        self.per_checkpoint = per_checkpoint
        self.over_table = ContractOverTable(path, schema, over, keys, *options) if over is not None else None
        self.origin.elsewhere = self.over_table is not None
        self._keys_without_table = bool(keys) and over is None

    def with_unique_keys(self, keys: Sequence[str]) -> Contract:
        """Return the contract for a sink that replaces rows by these columns, so that they are unique in its table."""
        contract = copy(self)
        contract.origin = copy(self.origin)
        contract.origin.keys = tuple(keys)
        if self.over_table is not None:
            contract.over_table = copy(self.over_table)
            contract.over_table.origin = copy(self.over_table.origin)
            contract.over_table.origin.keys = tuple(keys)
        return contract

    def description(self, place: Place) -> TableDescription:
        """Return what the contract says about the table and its columns. Nothing, if it cannot be read."""
        try:
            schema = self.contract(place).schema
        except Invalid:
            return TableDescription()  # the gate reports it
        columns = {}
        for path, each in every_property(schema.properties):
            text = each.description or each.business_name
            if text and each.name:
                columns[path.replace("[]", ".element")] = text
        return TableDescription(schema.description or schema.business_name, columns)

    def fresh_within(self, place: Place) -> float | None:
        """Return within how many seconds the table is promised to be fresh. None: it is not, or cannot be read."""
        try:
            return self.contract(place).fresh_s
        except Invalid:
            return None

    @property
    def followed_by(self) -> Gate | None:
        return self.over_table

    def describe(self) -> Json:
        description = super().describe()
        if self.per_checkpoint:
            description["per_checkpoint"] = True
        if self.extra != "allow":
            description["extra"] = self.extra
        if self.over_table is not None:
            description["over_table"] = self.over_table.over
        return description

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.extra not in ("allow", "refuse"):
            problems.append(f'extra is {self.extra!r}: write "allow" or "refuse"')
        if self.over_table is not None and self.per_checkpoint:
            problems.append("over and per_checkpoint are two ways to judge the rules about all rows: leave one out")
        if self._keys_without_table:
            problems.append("keys say which rows of a table are replaced, but over=… is not set")
        return problems

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:
        contract = self.contract(context.place)
        problems = self._schema_problems(frame, contract)
        if problems and self._policies()["critical"] != "warn":
            raise Invalid(
                "\n    ".join([f"gate {context.gate!r}: the rows do not keep {contract.document.path}:", *problems]),
                expected="the columns of the contract, with their types",
                help="change the last stage before the gate, or the contract",
                reason="BAD_CONTRACT",
            )

    def _schema_problems(self, frame: DataFrame, contract: ReadContract) -> list[str]:
        columns: Json = msgspec.json.decode(frame.schema.json())
        return schema_mismatches(contract.schema, columns, extra=self.extra)

    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        contract = self.contract_for(context)
        problems = self._schema_problems(frame, contract)
        if not problems:
            return super().judge(frame, context)
        policy = self._policies()["critical"]
        policy = "abort" if policy == "quarantine" else policy
        frame = materialize(frame)
        why = "; ".join(problems)[:300]
        return Judgement(
            frame.count(),
            (BrokenRule("schema", policy, why=why),),
            {"success": False, "schema": problems, "meta": self._contract_facts(contract)},
            None,
            (frame,),
            frame,
            why="the contract's rules were not judged, because the rows do not have its columns",
        )


def described_gate(description: Json) -> ContractGate | None:
    """Return the gate that `describe` has described. None: that was not a gate of a contract."""
    if not {"contract", "on_failure", "private"} <= description.keys():
        return None
    policies, private = description["on_failure"], description["private"]
    path, schema, without = description["contract"], description.get("schema"), description.get("without", ())
    gate: ContractGate
    if "over" in description:
        over, keys = description["over"], description["keys"]
        gate = ContractOverTable(path, schema, over, keys, without, policies, 1.0, private, None, "reject")
    else:
        gate = Contract(
            path,
            schema=schema,
            over=description.get("over_table"),
            per_checkpoint=description.get("per_checkpoint", False),
            extra=description.get("extra", "allow"),
            without=without,
            on_failure=policies,
            private=private,
        )
    gate.origin.keys = tuple(description.get("unique_by", ()))
    return gate


class ContractOverTable(ContractGate):
    """Judges the rules of a contract that are about all rows of a table, over the table as it will be."""

    kind: ClassVar[str] = "contract-over-table"

    def __init__(
        self,
        path: str,
        schema: str | None,
        over: str,
        keys: Sequence[str],
        without: Sequence[str],
        on_failure: Policy | Mapping[str, Policy],
        at_most: float,
        private: Sequence[str],
        hold_for: float | str | None,
        unanswered: Literal["approve", "reject"],
    ) -> None:
        super().__init__(path, schema, "table", without, on_failure, at_most, private, hold_for, unanswered)
        self.over = over
        self.keys = tuple(listed(keys))
