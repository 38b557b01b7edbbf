"""The declared graph: its nodes, its checks, and how it is cut into jobs."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from tidegate.connectors.adaptive import Adaptive
from tidegate.connectors.channel import Channel
from tidegate.connectors.sink import AtLeastOnceSink, Sink
from tidegate.connectors.source import Source
from tidegate.errors import Invalid
from tidegate.pipeline.graph.contracts import contract_problems
from tidegate.pipeline.graph.event_time import event_time_problems
from tidegate.pipeline.graph.fingerprint import function_fingerprint, logic_of
from tidegate.pipeline.graph.jobs import cut, find_greedy_jobs, job_problems, jobs_of, option_problems, overtakable
from tidegate.pipeline.graph.nodes import (
    GateNode,
    Job,
    Node,
    OperatorNode,
    SinkNode,
    SourceNode,
    StageNode,
    gate_problems,
    makers_of,
)
from tidegate.pipeline.graph.retractions import can_be_remade, with_implied_operators
from tidegate.pipeline.graph.updates import forgetting_operators, update_problems, updating_streams
from tidegate.pipeline.hooks import Hook, OnSuspended
from tidegate.records.codec import fingerprint
from tidegate.records.names import check_name
from tidegate.records.place import Place

__all__ = [
    "Graph",
    "Job",
    "Lineage",
    "Node",
    "OperatorNode",
    "SinkNode",
    "SourceNode",
    "StageNode",
    "against_problems",
    "build_graph",
    "lookup_problems",
    "lookups",
]


def against_problems(ordered: Sequence[Node], jobs: Mapping[str, str]) -> list[str]:
    """List what is wrong with gates that compare with an operator's state (`against`). jobs: the job of each stage."""
    operators = {stage.name: stage for stage in ordered if isinstance(stage, OperatorNode)}
    problems = []
    for gated in ordered:
        uid = None
        if isinstance(gated, GateNode):
            uid = getattr(gated.gate, "against", None)
        if not isinstance(uid, str) or not isinstance(gated, GateNode):
            continue
        subject = f"gate {gated.name!r} is against {uid!r}"
        if uid not in operators:
            choices = ", ".join(sorted(operators)) or "there is none"
            problems.append(f"{subject}, which is no operator: expected the uid of one ({choices})")
            continue
        keys, judged = operators[uid].spec.permanent_keys, list(getattr(gated.gate, "by", []))
        if keys is None:
            problems.append(f"{subject}, which forgets keys: expected a deduplicate, latest or aggregate without end")
        elif sorted(keys) != sorted(judged):
            problems.append(
                f"{subject}, which is keyed by {', '.join(keys)}, not by {', '.join(judged)}: judge by the same columns"
            )
        elif jobs[uid] != jobs[gated.name]:
            problems.append(
                f"{subject} of job {jobs[uid]!r}, but is in job {jobs[gated.name]!r}: a state is only available in its "
                "own job: put both into one, with .job(…)"
            )
    return problems


def compared_stream_problems(ordered: Sequence[Node], jobs: Mapping[str, str]) -> list[str]:
    """List gates that compare rows with those of another stream, if not both are of the gate's job."""
    makers = makers_of(ordered)
    problems = []
    for stage in ordered:
        if not isinstance(stage, OperatorNode) or not stage.for_gate or len(stage.inputs) < 2:
            continue
        for stream in stage.inputs:
            if stream in makers and jobs[makers[stream].name] != jobs[stage.name]:
                problems.append(
                    f"{stage.title} compares {' with '.join(stage.inputs)}, but {stream} is of job "
                    f"{jobs[makers[stream].name]!r}, not {jobs[stage.name]!r}: jobs may be at different checkpoints; "
                    "put the gate where both streams are made"
                )
    return problems


class Lineage:
    """Finds the sources, operators and gates upstream of a graph's streams."""

    def __init__(self, stages: Sequence[Node]) -> None:
        self._makers = makers_of(stages)
        self._path_hashes: dict[str, str] = {}
        self._sources: dict[str, list[str]] = {}

    def origins(self, stream: str) -> list[str]:
        """Return the nearest sources and operators upstream, looking through stages and gates."""
        stage = self._makers.get(stream)
        if stage is None:
            return [stream]
        if isinstance(stage, OperatorNode):
            return [stage.name]
        origins: set[str] = set()
        for input in stage.inputs:
            origins.update(self.origins(input))
        return sorted(origins)

    def sources(self, stream: str) -> list[str]:
        """Return all sources upstream, through stages, gates and operators."""
        if stream not in self._sources:
            stage = self._makers.get(stream)
            if stage is None:
                return [stream]
            sources: set[str] = set()
            for input in stage.inputs:
                sources.update(self.sources(input))
            self._sources[stream] = sorted(sources)
        return self._sources[stream]

    def gates(self, stream: str) -> frozenset[str]:
        """Return all gates upstream, through stages, gates and operators."""
        stage = self._makers.get(stream)
        if stage is None:
            return frozenset()
        gates = {stage.name} if isinstance(stage, GateNode) else set()
        return frozenset(gates.union(*(self.gates(name) for name in stage.inputs)))

    def path_hash(self, stream: str) -> str:
        """Return a hash of the path from those origins to the stream, of the logic of its stages and operators.

        Gates pass rows unchanged, so they do not count. Of an operator, its way of replacing rows counts, since it must
        retract the same rows.
        """
        if stream not in self._path_hashes:
            self._path_hashes[stream] = fingerprint({"way": self._path_hash(stream)})
        return self._path_hashes[stream]

    def _path_hash(self, stream: str) -> object:
        stage = self._makers.get(stream)
        if stage is None:
            return "a source"
        if isinstance(stage, GateNode):
            return self.path_hash(stage.input)
        output = stream.removeprefix(stage.name)
        if isinstance(stage, StageNode):
            return [logic_of(stage.function), output, [self.path_hash(name) for name in stage.inputs]]
        return [stage.name, output, stage.spec.changelog.mode]


def lookups(stages: Sequence[Node]) -> frozenset[str]:
    """Return the names of the lookup tables (broadcasts)."""
    operators = [stage for stage in stages if isinstance(stage, OperatorNode)]
    return frozenset(stage.name for stage in operators if stage.spec.output.is_lookup_table)


def lookup_problems(
    stages: Sequence[Node], sinks: Sequence[SinkNode], jobs: Mapping[str, str], updating: frozenset[str]
) -> list[str]:
    """List wrong uses of lookup tables. jobs: the job of each stage. updating: the streams with retractions."""
    tables, problems = lookups(stages), []
    for stage in stages:
        uses_lookup = isinstance(stage, OperatorNode) and stage.spec.inputs.lookup_table
        if uses_lookup and isinstance(stage, OperatorNode) and stage.inputs[-1] not in tables:
            problems.append(
                f"{stage.title} looks up {stage.inputs[-1]}, which is no lookup table: use .broadcast(by=…, order_by=…)"
            )
        inputs = [name for name in stage.inputs if name in tables]
        if not inputs:
            continue
        subject = f"{stage.name!r} takes {', '.join(inputs)}"
        streams = [name for name in stage.inputs if name not in tables]
        retracting = [name for name in streams if name in updating]
        if not isinstance(stage, StageNode) and not (uses_lookup and inputs == [stage.inputs[-1]]):
            problems.append(
                f"{subject}, all of it in each checkpoint: look it up in a stage, and take that stage's rows"
            )
        elif not streams:
            problems.append(f"stage {subject} and nothing else: name the stream that looks it up, too")
        elif retracting:
            problems.append(
                f"stage {subject} and {', '.join(retracting)}, whose replaced rows would be looked up in today's table,"
                " not in the one of then: put it before the operator that replaces rows"
            )
        for name in inputs:
            if jobs[name] != jobs[stage.name]:
                problems.append(
                    f"stage {subject} of job {jobs[name]!r} in job {jobs[stage.name]!r}: "
                    f"say .job({jobs[stage.name]!r}) before .broadcast(…), so that only changes go there"
                )
    for sink in sinks:
        if sink.input in tables:
            problems.append(
                f"sink {sink.name!r} takes {sink.input}, all of it in each checkpoint: "
                "let it take .latest(…) of the same rows, which emits the changed rows"
            )
    return problems


@dataclass(frozen=True)
class Graph:
    """A checked pipeline. Stages are in topological order."""

    name: str
    sources: Mapping[str, SourceNode]
    stages: tuple[Node, ...]
    sinks: Mapping[str, SinkNode]
    settings: Mapping[str, object]
    on_suspended: tuple[OnSuspended, ...] = ()
    hooks: tuple[Hook, ...] = ()
    hooks_elsewhere: bool = False
    """True for a backfill: the pipeline's own graph calls the hooks, and stores their state."""
    aligned: frozenset[str] = frozenset()
    """Jobs that are declared with `aligned=True`."""
    at_least_once: bool = False
    finishes: bool = False
    """Whether the pipeline ends once all of its sources have been read to their end."""
    promises: Mapping[str, float] = field(default_factory=dict)
    """By sink, how old its table may be, in seconds."""

    @property
    def by_interval(self) -> bool:
        """True for an interval pipeline: each run reads the rows of its data interval, and nothing else."""
        return all(s.source.by_interval for s in self.sources.values())

    @functools.cached_property
    def tables(self) -> Mapping[str, SinkNode]:
        """All targets to which checkpoints are published: sinks, states and quarantines."""
        tables = dict(self.sinks)
        for stage in self.operators:
            for name, state in stage.states.items():
                tables[name] = SinkNode(name, state, stage.name)
        for gate in self.gates:
            for name, quarantine in gate.quarantine.items():
                tables[name] = SinkNode(name, quarantine, gate.name)
        return tables

    @functools.cached_property
    def parts(self) -> int:
        """The largest number of payloads in one record: one for each table, source, channel or gate."""
        return max(map(len, (self.tables, self.sources, self.channels, self.gates)))

    @functools.cached_property
    def lineage(self) -> Lineage:
        """The lineage of the graph's streams."""
        return Lineage(self.stages)

    def replacers(self, stream: str) -> list[str]:
        """Return the nearest operators upstream that replace rows of this stream."""
        return [name for name in self.lineage.origins(stream) if name in self.updating]

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        """The stages that keep state."""
        return tuple(stage for stage in self.stages if isinstance(stage, OperatorNode))

    @property
    def gates(self) -> tuple[GateNode, ...]:
        """The gates, in the order in which rows reach them."""
        return tuple(stage for stage in self.stages if isinstance(stage, GateNode))

    @functools.cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs, in topological order."""
        return cut(self.sources.values(), self.stages, self.sinks.values())

    @functools.cached_property
    def channels(self) -> Mapping[str, Channel]:
        """The streams that go from job to job, as channels."""
        return {name: Channel(name) for job in self.jobs for name in job.gives}

    @functools.cached_property
    def channels_of_jobs(self) -> Mapping[str, dict[str, str]]:
        """For each job, the streams that it reads from other jobs, with the jobs that emit them."""
        makers = {}
        for job in self.jobs:
            for stream in job.gives:
                makers[stream] = job.name
        return {job.name: {stream: makers[stream] for stream in job.takes} for job in self.jobs if job.takes}

    @property
    def overtakable(self) -> tuple[str, ...]:
        """The jobs that a checkpoint may overtake."""
        if self.by_interval:
            return ()
        return overtakable(self.jobs, self.aligned)

    @functools.cached_property
    def greedy_jobs(self) -> tuple[str, ...]:
        """The jobs that take all available input, in mode at_least_once."""
        if not self.at_least_once:
            return ()
        return find_greedy_jobs(self.jobs, self.aligned, self.updating)

    def job_of(self, table: str) -> str | None:
        """Return the job that stages the rows of a table, or None."""
        for job in self.jobs:
            staged = [s.name for s in job.sinks] + [name for part in job.operators for name in part.states]
            if table in staged or any(table in gated.quarantine for gated in job.gates):
                return job.name
        return None

    def job(self, name: str) -> Job:
        """Return the job with this name, or raise Invalid."""
        for job in self.jobs:
            if job.name == name:
                return job
        raise Invalid(
            f"pipeline {self.name!r} has no job {name!r}",
            expected=" or ".join(job.name for job in self.jobs),
            help="the pipeline's code changed since the checkpoint was planned: abort it and trigger again",
            reason="UNKNOWN_JOB",
        )

    @functools.cached_property
    def updating(self) -> frozenset[str]:
        """The streams whose rows replace rows that they emitted before."""
        return updating_streams(self.stages)

    def can_show(self, stage: OperatorNode, *, across_jobs: bool = False) -> bool:
        """Return whether all rows that hold in an operator's first input can be computed again in its job.

        across_jobs: answer as if all operators were in one job.
        """
        jobs: dict[str, str] = {}
        for job in self.jobs:
            jobs |= dict.fromkeys((node.name for node in job.stages), "" if across_jobs else job.name)
        return can_be_remade(stage.inputs[0], self.stages, self.updating, jobs, jobs[stage.name])

    def wants_retractions(self, stream: str) -> bool:
        """Return whether any stage or sink uses the retractions of a stream."""
        if any(stream in stage.inputs for stage in self.stages):
            return True
        for sink in self.sinks.values():
            if sink.input == stream and sink.sink.wants_retractions and not self.never_drops_keys(sink):
                return True
        return False

    def never_drops_keys(self, sink: SinkNode) -> bool:
        """Return whether rows of this sink are only ever replaced under the same key, never removed."""
        for stage in self.operators:
            if stage.name == sink.input:
                over_updates = not self.updating.isdisjoint(stage.inputs)
                return stage.spec.changelog.never_drops_keys(sink.sink.upserts, over_updates)
        return False

    def code_fingerprint(self) -> str:
        """Return a hash that changes with the graph, an operator's settings or a stage's code."""
        cut = {job.name: sorted(job.names) for job in self.jobs}
        return fingerprint(
            {
                **({"jobs": cut} if len(cut) > 1 else {}),
                "sources": {name: s.described for name, s in self.sources.items()},
                "stages": {s.name: [s.inputs, s.outputs, _code_parts(s)] for s in self.stages},
                "sinks": {name: [s.sink.kind, s.input, s.sink.describe()] for name, s in self.sinks.items()},
            }
        )


MAX_TABLES = 3000
"""Maximum number of sinks and stages of a pipeline. A checkpoint's records name the table of each."""


def _size_problems(stages: Sequence[Node], sinks: Sequence[SinkNode]) -> list[str]:
    count = len(stages) + len(sinks)
    if count <= MAX_TABLES:
        return []
    return [f"it has {count:,} sinks and stages; there may be {MAX_TABLES:,}: divide it into several pipelines"]


def build_graph(
    name: str,
    sources: list[SourceNode],
    stages: list[Node],
    sinks: list[SinkNode],
    settings: Mapping[str, object],
    place: Place | None,
    mode: str | None = None,
    *,
    finishes: bool = False,
    promised: Sequence[tuple[str, float]] = (),
) -> Graph:
    """Return the checked graph, or raise Invalid with all problems and their remedies. mode: the effective setting."""
    by_interval = any(getattr(s.source, "by_interval", False) for s in sources)
    at_least_once = (mode or settings.get("mode")) == "at_least_once"
    if by_interval:
        stages = [replace(stage, keeps_state=False) if isinstance(stage, OperatorNode) else stage for stage in stages]
    declared = _DeclaredParts(
        name,
        sources,
        stages,
        sinks,
        settings,
        place,
        at_least_once=at_least_once,
        by_interval=by_interval,
        finishes=finishes,
        promised=promised,
    )
    problems: list[str] = []
    for check_parts in _CHECKS_OF_PARTS:
        problems += check_parts(declared)
    ordered: list[Node] = []
    if declared.has_comparable_names():
        ordered, cycle = _sort_stages(stages)
        for check_wiring in _CHECKS_OF_WIRING:
            problems += check_wiring(declared, ordered)
        problems += _cycle_problems(cycle, stages)
    if problems:
        raise _bad_pipeline(name, problems)
    updating = updating_streams(ordered)
    ordered, sinks = with_implied_operators(ordered, sinks, updating, forgetting_operators(ordered, updating))
    return Graph(
        name,
        {source.name: source for source in sources},
        tuple(ordered),
        {sink.name: sink for sink in sinks},
        dict(settings),
        at_least_once=at_least_once,
        finishes=finishes,
        promises=dict(promised),
    )


@dataclass(frozen=True)
class _DeclaredParts:
    """The parts of a pipeline as they are declared, before anything is known to be right."""

    name: str
    sources: list[SourceNode]
    stages: list[Node]
    sinks: list[SinkNode]
    settings: Mapping[str, object]
    place: Place | None
    _: KW_ONLY
    at_least_once: bool
    by_interval: bool
    finishes: bool
    promised: Sequence[tuple[str, float]]

    def has_comparable_names(self) -> bool:
        """Return whether all names are texts. A user may have passed anything."""
        names: list[object] = [node.name for node in (*self.sources, *self.sinks, *self.stages)]
        for stage in self.stages:
            names += stage.outputs
        for node in (*self.stages, *self.sinks):
            if node.job is not None:
                names.append(node.job)
        return all(isinstance(name, str) for name in names)


_CHECKS_OF_PARTS: Final[Sequence[Callable[[_DeclaredParts], Iterable[str]]]] = (
    lambda d: _size_problems(d.stages, d.sinks),
    lambda d: _bad_names(d.name, d.sources, d.stages, d.sinks),
    lambda d: _declaration_problems(d.sources, d.sinks, at_least_once=d.at_least_once),
    lambda d: _operator_problems(d.stages),
    lambda d: gate_problems(d.stages, by_interval=d.by_interval, at_least_once=d.at_least_once),
    lambda d: _interval_problems(d.sources, d.sinks, at_least_once=d.at_least_once),
    lambda d: _finish_problems(d.sources) if d.finishes else (),
)
"""What is checked of each part. Each lists its problems, in words for the user."""

_CHECKS_OF_WIRING: Final[Sequence[Callable[[_DeclaredParts, list[Node]], Iterable[str]]]] = (
    lambda d, ordered: _repeated_names(d.sources, d.stages, d.sinks),
    lambda d, ordered: _promise_problems(d.promised, d.sinks),
    lambda d, ordered: _wiring_problems(d.sources, d.stages, d.sinks),
    lambda d, ordered: _shared_targets(d.sinks, d.place or Place("/")),
    lambda d, ordered: contract_problems(d.sources, ordered, d.place),
    lambda d, ordered: event_time_problems(d.sources, ordered),
    lambda d, ordered: update_problems(ordered, d.sinks),
    lambda d, ordered: job_problems(ordered, d.sinks),
    lambda d, ordered: option_problems(d.settings, ordered, d.sinks),
    lambda d, ordered: against_problems(ordered, jobs_of(ordered, d.sinks)),
    lambda d, ordered: compared_stream_problems(ordered, jobs_of(ordered, d.sinks)),
    lambda d, ordered: lookup_problems(ordered, d.sinks, jobs_of(ordered, d.sinks), updating_streams(ordered)),
)
"""What is checked of the parts together, once their names can be compared. ordered: the stages after their inputs."""


def _cycle_problems(cycle: list[str], stages: Sequence[Node]) -> list[str]:
    """List a problem for stages that feed each other."""
    names = Counter(stage.name for stage in stages)
    if not cycle or any(names[name] > 1 for name in cycle):
        return []  # of a name that is used twice it is not known whether this is a cycle
    return [f"stages {', '.join(cycle)} feed each other in a circle: a stage cannot wait for itself"]


def _bad_pipeline(name: str, problems: Sequence[str]) -> Invalid:
    """Return the error that lists all problems of a pipeline."""
    numbered = [f"  {number}. {problem}" for number, problem in enumerate(problems, 1)]
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return Invalid(
        "\n".join([f"pipeline {name!r} has {count}:", *numbered]),
        help="fix all of them; nothing has been read or written",
        reason="BAD_PIPELINE",
    )


def _promise_problems(promised: Sequence[tuple[str, float]], sinks: Sequence[SinkNode]) -> list[str]:
    """List promises for sinks that do not exist, and second promises for the same sink."""
    known = [sink.name for sink in sinks]
    problems = []
    for index, (name, _) in enumerate(promised):
        if name not in known:
            closest = difflib.get_close_matches(name, known, n=1)
            if closest:
                hint = f"did you mean {closest[0]!r}?"
            else:
                hint = f"expected one of {', '.join(known) or 'none'}"
            problems.append(f"the promise for {name!r} is for no sink: {hint}")
        if name in (earlier for earlier, _ in promised[:index]):
            problems.append(f"sink {name!r} has two promises: leave one of them")
    return problems


def _finish_problems(sources: list[SourceNode]) -> list[str]:
    by_interval = [node.name for node in sources if getattr(node.source, "by_interval", False)]
    if by_interval:
        return [
            f"it finishes by itself, and source {', '.join(by_interval)} reads by data interval: the schedule says "
            "which interval is the last one; leave out finishes"
        ]
    return [
        f"it finishes once its sources have been read to their end, and source {node.name!r} may get more: say "
        "bounded=True there, if it will not"
        for node in sources
        if node.bounded is not True
    ]


def _bad_names(name: str, sources: list[SourceNode], stages: list[Node], sinks: list[SinkNode]) -> list[str]:
    named = [("pipeline", name)]
    named += [("source", node.name) for node in sources]
    named += [("stage", node.name) for node in stages]
    for stage in stages:
        named += [("output", output) for output in stage.outputs]
    named += [("sink", node.name) for node in sinks]
    # Users may pass anything as a name, so it may not be hashable.
    jobs = {repr(node.job): node.job for node in (*stages, *sinks) if node.job is not None}
    for job in jobs.values():
        named.append(("job", job))
    problems = []
    for kind, candidate in named:
        try:
            check_name(kind, candidate)
        except Invalid as error:
            problems.append(f"{error.what}; expected {error.expected}")
    return problems


def _repeated_names(sources: list[SourceNode], stages: list[Node], sinks: list[SinkNode]) -> list[str]:
    generated = {}
    for node in stages:
        if not isinstance(node, StageNode) and node.generated:
            generated[node.name] = node
    problems = []
    for name, count in Counter(node.name for node in (*sources, *stages)).items():
        if count > 1 and name in generated:
            problems.append(_same_default_name(generated[name], count))
        elif count > 1:
            problems.append(f"{name!r} names {count} sources or stages: give each its own name")
    for stage in stages:
        for output, count in Counter(stage.outputs).items():
            if count > 1:
                problems.append(f"stage {stage.name!r} has output {output!r} more than once")
    for name, count in Counter(node.name for node in sinks).items():
        if count > 1:
            problems.append(f"{name!r} names {count} sinks: give each its own name")
    return problems


def _same_default_name(stage: OperatorNode | GateNode, count: int) -> str:
    """Ask for explicit names. Only the user knows which of the nodes owns the state under this name."""
    part, word = (stage.operator, "uid") if isinstance(stage, OperatorNode) else (stage.gate, "name")
    return (
        f'{count} of {getattr(part, "kind", "gate")} would be called {stage.name!r}: set {word}="…" on each, so that '
        f"their order in the code does not matter; {word}={stage.name!r} on the one that existed before, if any"
    )


def _declaration_problems(sources: list[SourceNode], sinks: list[SinkNode], *, at_least_once: bool) -> list[str]:
    problems = []
    for node in sources:
        if isinstance(node.source, Source):
            own_problems = [*node.source.problems(), *_pace_problems(node)]
            for problem in own_problems:
                problems.append(f"source {node.name!r}: {problem}")
        else:
            problems.append(f"source {node.name!r} is a {type(node.source).__name__}, not a Source such as Files(…)")
    for sinking in sinks:
        sink = sinking.sink
        if not isinstance(sink, Sink):
            problems.append(f"sink {sinking.name!r} is a {type(sink).__name__}, not a Sink such as DeltaAppend(…)")
            continue
        for problem in sink.problems():
            problems.append(f"sink {sinking.name!r}: {problem}")
        if isinstance(sink, AtLeastOnceSink) and not (sinking.at_least_once or at_least_once):
            problems.append(
                f"sink {sinking.name!r} can repeat rows after a failure, but the pipeline promises exactly once: "
                'use another sink, accept it by name with .sink(…, at_least_once=True), or say mode = "at_least_once"'
            )
    return problems


def _pace_problems(node: SourceNode) -> list[str]:
    pace, source = node.pace, node.source
    if pace is None:
        return []
    if not isinstance(pace, Adaptive):
        return [f"max_per_checkpoint is {pace!r}; say Adaptive(…), and fixed bounds where the source is declared"]
    problems = [f"max_per_checkpoint: {problem}" for problem in pace.problems()]
    if source.unit is None or source.by_interval:
        problems.append("max_per_checkpoint: this source's input cannot be bounded; leave it out")
    return problems


def _operator_problems(stages: list[Node]) -> list[str]:
    problems = []
    for stage in stages:
        if not isinstance(stage, OperatorNode):
            continue
        subject = stage.title
        for problem in stage.operator.problems():
            problems.append(f"{subject}: {problem}")
        if not stage.keeps_state:
            for problem in stage.spec.interval_problems:
                problems.append(f"{subject}, in a pipeline that reads by data interval: {problem}")
    return problems


def _interval_problems(sources: list[SourceNode], sinks: list[SinkNode], *, at_least_once: bool) -> list[str]:
    """Check that all sources read by interval, or none, and that each sink can replace one interval's rows."""
    declared = [node for node in sources if isinstance(node.source, Source)]
    by_interval = [node.name for node in declared if node.source.by_interval]
    continuous = [node.name for node in declared if not node.source.by_interval]
    if not by_interval:
        return []
    if continuous:
        return [
            f"source {', '.join(by_interval)} reads by data interval, {', '.join(continuous)} reads all new rows: "
            "all sources of a pipeline must do the same"
        ]
    if at_least_once:
        return [
            f"source {', '.join(by_interval)} reads by data interval, whose rows replace its earlier rows in the "
            'tables: that takes one commit per table, after the decision, so set mode = "exactly_once"'
        ]
    problems = []
    for node in sinks:
        if isinstance(node.sink, Sink):
            subject = f"sink {node.name!r}, in a pipeline that reads by data interval"
            for problem in node.sink.interval_problems():
                problems.append(f"{subject}: {problem}")
    return problems


def _wiring_problems(sources: list[SourceNode], stages: list[Node], sinks: list[SinkNode]) -> list[str]:
    streams = {node.name for node in sources}
    used = {node.input for node in sinks}
    for stage in stages:
        streams.update(stage.produces)
        used.update(stage.inputs)
    choices = ", ".join(sorted(streams)) or "none"
    problems = []
    if not sources:
        problems.append("it has no source: add one with pipeline.source(…)")
    if not sinks:
        problems.append("it has no sink, so it would do nothing: add one with stream.sink(…)")
    for stage in stages:
        if not stage.inputs:
            problems.append(f"stage {stage.name!r} has no input: name at least one in @pipeline.stage(…)")
        for input in stage.inputs:
            if input not in streams:
                problems.append(f"stage {stage.name!r} reads unknown {input!r} (known: {choices})")
        problems += _signature_problems(stage)
    for sink in sinks:
        if sink.input not in streams:
            problems.append(f"sink {sink.name!r} takes unknown {sink.input!r} (known: {choices})")
    for source in sources:
        if source.name not in used:
            problems.append(f"source {source.name!r} is read by nothing: use it or remove it")
    for stage in stages:
        if used.isdisjoint(stage.produces):
            problems.append(f"stage {stage.name!r} feeds nothing: use it or remove it")
    return problems


def _signature_problems(stage: Node) -> list[str]:
    if not isinstance(stage, StageNode):
        return []
    if not callable(stage.function):
        return [f"stage {stage.name!r} is a {type(stage.function).__name__}, not a function"]
    try:
        inspect.signature(stage.function).bind(*stage.inputs)
    except TypeError as error:
        return [f"stage {stage.name!r} cannot take its {len(stage.inputs)} inputs: {error}"]
    except ValueError:
        return []
    return []


def _shared_targets(sinks: list[SinkNode], place: Place) -> list[str]:
    targets: dict[str, list[str]] = {}
    problems = []
    for node in sinks:
        if isinstance(node.sink, Sink) and not node.sink.problems():
            try:
                targets.setdefault(node.sink.target(place), []).append(node.name)
            except Invalid as error:
                problems.append(f"sink {node.name!r}: {error.what}; expected {error.expected}")
    for target, names in targets.items():
        if len(names) > 1:
            problems.append(
                f"sinks {', '.join(names)} write to one target {target}: union their streams in a stage, or use two "
                "tables"
            )
    return problems


def _sort_stages(stages: list[Node]) -> tuple[list[Node], list[str]]:
    """Sort stages topologically, in the declared order where possible. Return also the names of stages in cycles."""
    ordered: list[Node] = []
    waiting = list(stages)
    while waiting:
        missing_streams = set[str]().union(*(stage.produces for stage in waiting))
        ready = [stage for stage in waiting if missing_streams.isdisjoint(stage.inputs)]
        if not ready:
            return ordered, [stage.name for stage in waiting]
        ordered += ready
        waiting = [stage for stage in waiting if stage not in ready]
    return ordered, []


def _code_parts(stage: Node) -> object:
    if isinstance(stage, OperatorNode):
        code = stage.spec.code
        return [stage.operator.kind, stage.operator.describe(), function_fingerprint(code) if code is not None else ""]
    if isinstance(stage, GateNode):
        return [stage.gate.kind, stage.gate.describe()]
    return function_fingerprint(stage.function)
