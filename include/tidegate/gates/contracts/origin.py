"""A contract as the origin of a gate's suite."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tidegate.errors import Invalid
from tidegate.gates.contracts.document import (
    ContractDocument,
    ContractProblems,
    ObjectSchema,
    contract_path,
    read_contract,
    read_contract_text,
)
from tidegate.gates.contracts.rules import ContractRule, ContractRules, rules_of
from tidegate.gates.contracts.service_levels import promised_freshness
from tidegate.gates.expectations.catalogue import CATALOGUE
from tidegate.gates.expectations.origin import SuiteOrigin
from tidegate.gates.expectations.suite import Suite, rules_from
from tidegate.records.place import Place
from tidegate.records.records import Json

__all__ = ["ContractSuite", "JudgedRules", "ReadContract", "read_for_table"]

JudgedRules = Literal["rows", "table", "all"]
"""Which rules a gate judges: those about single rows, those about all rows of the table, or both."""


@dataclass(frozen=True)
class ReadContract:
    """One table of a contract, with its rules."""

    document: ContractDocument
    schema: ObjectSchema
    rules: ContractRules
    fresh_s: float | None = None
    """Within how many seconds the table is promised to be fresh."""

    def suite(self, judged: JudgedRules) -> Suite:
        """Return the rules as a suite. Raise Invalid, with lines, for what Great Expectations does not take."""
        problems = ContractProblems(self.document.path)
        wanted = [rule for rule in self.rules.rules if _is_judged(rule, judged)]
        rules = rules_from([rule.as_written for rule in wanted], problems, CATALOGUE)
        problems.raise_if_any()
        name = f"{self.schema.name}-contract" + ("-over-table" if judged == "table" else "")
        return Suite(name, self.document.path, tuple(rules))


def _is_judged(rule: ContractRule, judged: JudgedRules) -> bool:
    return judged == "all" or rule.about_all_rows == (judged == "table")


def read_for_table(
    text: str, path: str, schema: str | None, without: Iterable[str] = (), keys: Iterable[str] = ()
) -> ReadContract:
    """Read one table of a contract. Raise Invalid with all that is wrong, or that cannot be judged.

    without: the names of rules that are left out, also with * for any characters.
    keys: the columns by which a sink replaces rows.
    """
    return _read_for_table(text, path, schema, tuple(without), tuple(keys))


@functools.lru_cache(maxsize=16)  # a gate reads its contract several times for each checkpoint
def _read_for_table(
    text: str, path: str, schema: str | None, without: tuple[str, ...], keys: tuple[str, ...]
) -> ReadContract:
    document = read_contract(text, path)
    found = document.schema(schema)
    problems = ContractProblems(path)
    rules = rules_of(document, found, problems)
    fresh_s = promised_freshness(document, found, rules.told_only, problems)
    if not found.properties and not found.quality:
        problems.add(found.line, f"schema object {found.name} has no properties and no rules: it would pass everything")
    patterns = without
    names = [rule.name for rule in rules.rules] + [name for name, _, _ in rules.refused]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            problems.unknown(found.line, f"without: the contract has no rule {pattern!r}", pattern, names)
    left_out = {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    for name, line, why in rules.refused:
        if name not in left_out:
            problems.add(line, f"{name} cannot be judged: {why}; or leave it out: without=[{name!r}]")
    problems.raise_if_any()
    told = [*rules.told_only, *((name, "it is left out by without=[…]") for name in sorted(left_out))]
    kept = []
    for rule in rules.rules:
        if rule.key and set(rule.key) == set(keys):
            told.append((rule.name, "the sink replaces rows by these columns, so they are unique"))
        elif rule.name not in left_out:
            kept.append(rule)
    return ReadContract(document, found, ContractRules(kept, [], told), fresh_s)


class ContractSuite(SuiteOrigin):
    """The rules of one table of a contract."""

    elsewhere = False
    """Whether another gate judges the rules about all rows."""
    keys: tuple[str, ...] = ()
    """The columns by which the sink replaces rows, so that they are unique in its table."""

    def __init__(self, path: object, schema: str | None, judged: JudgedRules, without: Sequence[str]) -> None:
        self.file = path if isinstance(path, str) else ""
        self.schema = schema
        self.judged = judged
        self.without = tuple(without)
        self.name = schema or Path(self.file).name.split(".")[0]
        self._given = path

    def problems(self) -> list[str]:
        if self.file.endswith((".yaml", ".yml")):
            return []
        return [f"contract {self._given!r} is not a path that ends in .yaml"]

    def describe(self) -> Json:
        described: dict[str, Any] = {"contract": self.file}
        if self.schema:
            described["schema"] = self.schema
        if self.without:
            described["without"] = list(self.without)
        if self.keys:
            described["unique_by"] = list(self.keys)
        return described

    def path(self, place: Place) -> Path:
        """Return the path of the file."""
        return contract_path(place, self.file)

    def read(self, place: Place) -> str:
        return read_contract_text(self.path(place))

    def parse(self, text: str, place: Place) -> Suite:
        return self.contract(text, place).suite(self.judged)

    def contract(self, text: str, place: Place) -> ReadContract:
        """Return the contract of a text. Raise Invalid with all problems of it."""
        contract = read_for_table(text, str(self.path(place)), self.schema, self.without, self.keys)
        if self.judged == "rows" and not self.elsewhere:
            self._refuse_rules_about_all_rows(contract)
        return contract

    def _refuse_rules_about_all_rows(self, contract: ReadContract) -> None:
        rules = [rule for rule in contract.rules.rules if rule.about_all_rows]
        if not rules:
            return
        path, why = contract.document.path, "is about all rows of the table, and a checkpoint has only the new ones"
        raise Invalid(
            "\n".join(f"{path}:{rule.line}: {rule.name} {why}" for rule in rules),
            expected="over=…, the table whose rows are judged together with the new ones",
            help='write over="tables/…", which reads the table in every checkpoint; or per_checkpoint=True: these '
            f"rules then hold for the rows of each checkpoint; or without=[{rules[0].name!r}]",
            reason="BAD_CONTRACT",
        )
