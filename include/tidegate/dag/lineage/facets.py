"""Facts as OpenLineage's classes. Only imported where the provider is installed, which brings them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    lifecycle_state_change_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)

from tidegate import __version__
from tidegate.dag.lineage.facts import Assertion, ColumnOrigin, InputFacts, OutputFacts, TaskDatasets
from tidegate.records.records import Json

__all__ = ["operator_lineage"]

SCHEMAS: Final = "urn:tidegate:openlineage-facets:1-0-0"
"""The id of docs/reference/openlineage-facets.json. What it says about a version never changes."""
PRODUCER: Final = f"urn:tidegate:{__version__}"


@attr.define
class TidegateCheckpointRunFacet(RunFacet):
    """The entry of the log that the task belongs to."""

    pipeline: str
    checkpoint: int
    kind: str
    planned: str
    codeFingerprint: str  # noqa: N815
    state: str | None = None
    base: int | None = None
    intervalStart: str | None = None  # noqa: N815
    intervalEnd: str | None = None  # noqa: N815
    reason: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMAS}#/$defs/TidegateCheckpointRunFacet"


@attr.define
class TidegateRangesInputDatasetFacet(InputDatasetFacet):
    """Which part of the dataset was read: from where to where, by each source."""

    ranges: list[Json]

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMAS}#/$defs/TidegateRangesInputDatasetFacet"


@attr.define
class TidegateChangeOutputDatasetFacet(OutputDatasetFacet):
    """Why the dataset has changed."""

    cause: str
    checkpoint: int
    rows: int
    released: int | None = None
    backTo: int | None = None  # noqa: N815
    backfill: str | None = None
    reason: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMAS}#/$defs/TidegateChangeOutputDatasetFacet"


def operator_lineage(lineage: TaskDatasets) -> OperatorLineage[Dataset, RunFacet]:
    """Return what the provider asks an operator for."""
    run_facets: dict[str, RunFacet] = {}
    if lineage.checkpoint:
        run_facets["tidegate_checkpoint"] = TidegateCheckpointRunFacet(**lineage.checkpoint, producer=PRODUCER)
    return OperatorLineage(
        inputs=[_input(facts) for facts in lineage.inputs],
        outputs=[_output(facts) for facts in lineage.outputs],
        run_facets=run_facets,
    )


def _input(facts: InputFacts) -> InputDataset:
    facets: dict[str, DatasetFacet] = {}
    if facts.columns is not None:
        facets["schema"] = _schema(facts.columns)
    if facts.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(facts.version)
    of_input: dict[str, InputDatasetFacet] = {}
    if facts.ranges:
        of_input["tidegate_ranges"] = TidegateRangesInputDatasetFacet(facts.ranges, producer=PRODUCER)
    if facts.read is not None:
        of_input["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=facts.read.rows, size=facts.read.bytes, fileCount=facts.read.files
        )
    if facts.assertions:
        assertions = [_assertion(each) for each in facts.assertions]
        of_input["dataQualityAssertions"] = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
            assertions
        )
    return InputDataset(facts.dataset.namespace, facts.dataset.name, of_input, facets=facets)


def _assertion(assertion: Assertion) -> data_quality_assertions_dataset.Assertion:
    return data_quality_assertions_dataset.Assertion(
        assertion=assertion.rule,
        name=assertion.name,
        success=assertion.success,
        column=assertion.column,
        severity=_severity(assertion),
        actual=assertion.actual,
        params=assertion.details,
    )


def _severity(assertion: Assertion) -> str | None:
    """Return whether a broken rule stops the checkpoint. Of a rule that was kept no record says it."""
    if assertion.success:
        return None
    return "error" if assertion.blocks else "warn"


def _output(facts: OutputFacts) -> OutputDataset:
    change = facts.change
    facets: dict[str, DatasetFacet] = {}
    if facts.columns is not None:
        facets["schema"] = _schema(facts.columns)
    if facts.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(facts.version)
    if facts.made_of:
        facets["columnLineage"] = _column_lineage(facts.made_of)
    if change.back_to is not None:
        states = lifecycle_state_change_dataset.LifecycleStateChange
        facets["lifecycleStateChange"] = lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
            states.TRUNCATE if facts.emptied else states.OVERWRITE
        )
    of_output: dict[str, OutputDatasetFacet] = {
        "tidegate_change": TidegateChangeOutputDatasetFacet(
            cause=change.cause,
            checkpoint=change.entry,
            rows=change.rows,
            released=change.released or None,
            backTo=change.back_to,
            backfill=change.backfill or None,
            reason=change.reason or None,
            producer=PRODUCER,
        )
    }
    if change.back_to is None:  # a rollback writes no rows
        of_output["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=change.rows, size=change.bytes, fileCount=change.files
        )
    return OutputDataset(facts.dataset.namespace, facts.dataset.name, of_output, facets=facets)


# -- columns -------------------------------------------------------------------------------------------------


def _column_lineage(made_of: Mapping[str, list[ColumnOrigin]]) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    fields = {}
    for column, origins in made_of.items():
        inputs = [
            column_lineage_dataset.InputField(
                origin.dataset.namespace,
                origin.dataset.name,
                origin.column,
                [column_lineage_dataset.Transformation("DIRECT", origin.how.upper())],
            )
            for origin in origins
        ]
        fields[column] = column_lineage_dataset.Fields(inputs)
    return column_lineage_dataset.ColumnLineageDatasetFacet(fields)


def _schema(columns: Json) -> schema_dataset.SchemaDatasetFacet:
    return schema_dataset.SchemaDatasetFacet(_fields(columns))


def _fields(struct: Json) -> list[schema_dataset.SchemaDatasetFacetFields]:
    return [_field(field["name"], field["type"]) for field in struct["fields"]]


def _field(name: str, type: Any) -> schema_dataset.SchemaDatasetFacetFields:
    """Return a column, and what is in it, as OpenLineage describes nested columns."""
    if not isinstance(type, dict):
        return schema_dataset.SchemaDatasetFacetFields(name, str(type))
    nested = {
        "struct": lambda: _fields(type),
        "array": lambda: [_field("_element", type["elementType"])],
        "map": lambda: [_field("key", type["keyType"]), _field("value", type["valueType"])],
    }
    kind = str(type["type"])
    return schema_dataset.SchemaDatasetFacetFields(name, kind, fields=nested.get(kind, list)())
