"""A DAG's description of its pipeline, for processes that have only Airflow's copy of the DAG.

Airflow's web server runs no user code. So the DAG file attaches this card to the `trigger` task, where pages read it.
It says where the ledger is and how the pipeline is built.
"""

from __future__ import annotations

import msgspec

from tidegate.config import Settings
from tidegate.errors import Invalid
from tidegate.gates.contracts.gate import Contract
from tidegate.pipeline.graph.graph import Graph
from tidegate.pipeline.graph.nodes import GateNode, Node, OperatorNode, makers_of
from tidegate.records import typed
from tidegate.records.place import Place

__all__ = ["Box", "Card", "CardContract", "CardEvents", "CardSink", "card_of", "read_card"]

TITLE = "tidegate-card"


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One box of the drawing."""

    name: str
    role: str
    """source, stage, operator, gate or sink."""
    kind: str
    job: str
    inputs: list[str]
    """The boxes that it takes rows from."""


class CardContract(msgspec.Struct, frozen=True, kw_only=True):
    """The data contract of a sink, as it was when the DAG was read."""

    sink: str
    file: str
    name: str = ""
    version: str = ""
    status: str = ""
    domain: str = ""
    team: str = ""
    owner: str = ""
    purpose: str = ""
    problem: str = ""
    """Why the file could not be read; empty: it could."""


class CardSink(msgspec.Struct, frozen=True, kw_only=True):
    """What Airflow's web server needs to know of a sink to tell other DAGs of its table."""

    name: str
    gates: list[str]
    """The gates that its rows pass."""
    address: str = ""
    """The address by which other DAGs know the table, as Airflow writes it. Empty: they cannot."""


class CardEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What the DAG's asset events are about."""

    sinks: list[CardSink]
    always: bool
    """Whether checkpoints without rows send events, too."""
    by_partition: bool
    """Whether each event is about one interval."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The whole card. It holds no secrets: settings are masked."""

    title: str = TITLE
    pipeline: str
    project: str
    root: str
    data: str
    by_interval: bool
    tolerable_failed_checkpoints: int
    jobs: list[str]
    gates: dict[str, str]
    """Each gate, with its job."""
    parts: list[Box]
    rows_stay: dict[str, str] = {}
    """Each sink whose target keeps its rows in a rollback, with the reason."""
    keys: dict[str, list[str]] = {}
    """Each sink that has one row per key, with the columns of its key."""
    contracts: list[CardContract] = []
    events: CardEvents | None = None
    settings: list[tuple[str, str, str]]
    """Key, value, and where the value came from."""


def card_of(graph: Graph, settings: Settings, project: str, events: CardEvents | None = None) -> str:
    """Return the card, as JSON."""
    card = Card(
        pipeline=graph.name,
        project=project,
        root=settings.root,
        data=settings.data,
        by_interval=graph.by_interval,
        tolerable_failed_checkpoints=settings.tolerable_failed_checkpoints,
        jobs=[job.name for job in graph.jobs],
        gates={gated.name: job.name for job in graph.jobs for gated in job.gates},
        parts=_parts(graph),
        rows_stay={name: why for name, node in graph.sinks.items() if (why := node.sink.rows_stay_reason())},
        keys={name: list(node.sink.upserts) for name, node in graph.sinks.items() if node.sink.upserts},
        contracts=[
            _contract(name, node.contract, settings.place())
            for name, node in graph.sinks.items()
            if node.contract is not None
        ],
        events=events,
        settings=[(row.key, row.value, row.origin) for row in settings.display_rows()],
    )
    return msgspec.json.encode(card).decode()


def _contract(sink: str, contract: Contract, place: Place) -> CardContract:
    try:
        document = contract.contract(place).document
    except Invalid as error:
        return CardContract(sink=sink, file=contract.origin.file, problem=error.what.splitlines()[0])
    return CardContract(
        sink=sink,
        file=contract.origin.file,
        name=document.name or document.id,
        version=document.version,
        status=document.status,
        domain=document.domain,
        team=document.team,
        owner=document.owner,
        purpose=document.purpose,
    )


def read_card(text: object) -> Card | None:
    """Return the card in a text, or None if the text has none, or one of another version."""
    try:
        card = typed.decode(str(text), Card)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return card if card.title == TITLE else None


def _parts(graph: Graph) -> list[Box]:
    jobs = {}
    for job in graph.jobs:
        for part in (*job.sources, *job.stages, *job.sinks):
            jobs[part.name] = job.name
    makers = {name: name for name in graph.sources}
    for stream, stage in makers_of(graph.stages).items():
        makers[stream] = stage.name
    sources = []
    for name, source in graph.sources.items():
        sources.append(Box(name=name, role="source", kind=source.source.kind, job=jobs.get(name, ""), inputs=[]))
    stages = []
    for stage in graph.stages:
        stages.append(
            Box(name=stage.name, **_role(stage), job=jobs.get(stage.name, ""), inputs=_boxes(stage.inputs, makers))
        )
    sinks = []
    for name, sink in graph.sinks.items():
        sinks.append(
            Box(
                name=name,
                role="sink",
                kind=sink.sink.kind,
                job=jobs.get(name, ""),
                inputs=_boxes((sink.input,), makers),
            )
        )
    return [*sources, *stages, *sinks]


def _boxes(streams: tuple[str, ...], makers: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(makers[stream] for stream in streams if stream in makers))


def _role(stage: Node) -> dict[str, str]:
    if isinstance(stage, GateNode):
        return {"role": "gate", "kind": stage.gate.kind}
    if isinstance(stage, OperatorNode):
        return {"role": "operator", "kind": stage.operator.kind}
    return {"role": "stage", "kind": "stage"}
