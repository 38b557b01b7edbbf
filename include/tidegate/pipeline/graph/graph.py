"""The declared graph: its nodes, its checks, and how it is cut into jobs."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.connectors.adaptive import Adaptive
from tidegate.connectors.channel import Channel
from tidegate.connectors.sink import AtLeastOnceSink, Sink
from tidegate.connectors.source import Source
from tidegate.errors import Invalid
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
        uid = getattr(gated.gate, "against", None) if isinstance(gated, GateNode) else None
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


class Lineage:
    """Where the streams of one graph come from, and through which stages."""

    def __init__(self, stages: Sequence[Node]) -> None:
        self._makers = {name: stage for stage in stages for name in stage.produces}
        self._ways: dict[str, str] = {}
        self._sources: dict[str, list[str]] = {}

    def origins(self, stream: str) -> list[str]:
        """Return the nearest sources and operators upstream, looking through stages and gates."""
        stage = self._makers.get(stream)
        if stage is None or isinstance(stage, OperatorNode):
            return [stream if stage is None else stage.name]
        return sorted({name for stream in stage.inputs for name in self.origins(stream)})

    def sources(self, stream: str) -> list[str]:
        """Return all sources upstream, through stages, gates and operators."""
        if stream not in self._sources:
            stage = self._makers.get(stream)
            if stage is None:
                return [stream]
            self._sources[stream] = sorted({name for input in stage.inputs for name in self.sources(input)})
        return self._sources[stream]

    def gates(self, stream: str) -> frozenset[str]:
        """Return all gates upstream, through stages, gates and operators."""
        stage = self._makers.get(stream)
        if stage is None:
            return frozenset()
        own = {stage.name} if isinstance(stage, GateNode) else set()
        return frozenset(own.union(*(self.gates(name) for name in stage.inputs)))

    def path_hash(self, stream: str) -> str:
        """Return a hash of the path from those origins to the stream, of the logic of its stages and operators.

        Gates pass rows unchanged, so they do not count. Of an operator, its way of replacing rows counts, since it must
        retract the same rows.
        """
        if stream not in self._ways:
            self._ways[stream] = fingerprint({"way": self._path_hash(stream)})
        return self._ways[stream]

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
    """List wrong uses of lookup tables. jobs: the job of each stage. updating: streams that replace rows."""
    tables, problems = lookups(stages), []
    for stage in stages:
        looked_up = [name for name in stage.inputs if name in tables]
        if not looked_up:
            continue
        subject = f"{stage.name!r} takes {', '.join(looked_up)}"
        streams = [name for name in stage.inputs if name not in tables]
        looks_up = isinstance(stage, OperatorNode) and stage.spec.inputs.lookup_table
        if not isinstance(stage, StageNode) and not (looks_up and looked_up == [stage.inputs[-1]]):
            problems.append(
                f"{subject}, all of it in each checkpoint: look it up in a stage, and take that stage's rows"
            )
        elif not streams:
            problems.append(f"stage {subject} and nothing else: name the stream that looks it up, too")
        elif replacing := [name for name in streams if name in updating]:
            problems.append(
                f"stage {subject} and {', '.join(replacing)}, whose replaced rows would be looked up in today's table,"
                " not in the one of then: put it before the operator that replaces rows"
            )
        problems += [
            f"stage {subject} of job {jobs[name]!r} in job {jobs[stage.name]!r}: "
            f"say .job({jobs[stage.name]!r}) before .broadcast(…), so that only changes go there"
            for name in looked_up
            if jobs[name] != jobs[stage.name]
        ]
    problems += [
        f"{stage.title} looks up {stage.inputs[-1]}, which is no lookup table: say .broadcast(by=…, order_by=…) of it"
        for stage in stages
        if isinstance(stage, OperatorNode) and stage.spec.inputs.lookup_table and stage.inputs[-1] not in tables
    ]
    problems += [
        f"sink {sink.name!r} takes {sink.input}, all of it in each checkpoint: "
        "let it take .latest(…) of the same rows, which emits the changed rows"
        for sink in sinks
        if sink.input in tables
    ]
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
    """Another graph has the pipeline's hooks, and stores their state: this one is of a backfill's line."""
    aligned: frozenset[str] = frozenset()
    """Jobs that every checkpoint waits for, because they are declared so."""
    at_least_once: bool = False
    finishes: bool = False
    """It ends by itself, once all of its sources have been read to their end."""

    @property
    def by_interval(self) -> bool:
        """True for an interval pipeline: each run reads the rows of its data interval, and nothing else."""
        return all(s.source.by_interval for s in self.sources.values())

    @functools.cached_property
    def tables(self) -> Mapping[str, SinkNode]:
        """All targets to which checkpoints are published: the sinks, the tables of keyed states, and quarantines."""
        states = {
            name: SinkNode(name, sink, stage.name)
            for stage in self.stages
            if isinstance(stage, OperatorNode)
            for name, sink in stage.states.items()
        }
        quarantines = {name: SinkNode(name, sink, g.name) for g in self.gates for name, sink in g.quarantine.items()}
        return {**self.sinks, **states, **quarantines}

    @functools.cached_property
    def parts(self) -> int:
        """The largest number of equal parts in one record, one payload each: tables, sources, channels or gates."""
        return max(map(len, (self.tables, self.sources, self.channels, self.gates)))

    @functools.cached_property
    def lineage(self) -> Lineage:
        """Where streams come from, and through which stages."""
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
        """The jobs, each after those that it takes from."""
        return cut(self.sources.values(), self.stages, self.sinks.values())

    @functools.cached_property
    def channels(self) -> Mapping[str, Channel]:
        """The streams that go from job to job, as channels."""
        return {name: Channel(name) for job in self.jobs for name in job.gives}

    @functools.cached_property
    def channels_by_job(self) -> Mapping[str, dict[str, str]]:
        """For each job, the streams that it reads from other jobs, with the jobs that emit them."""
        makers = {stream: job.name for job in self.jobs for stream in job.gives}
        return {job.name: {stream: makers[stream] for stream in job.takes} for job in self.jobs if job.takes}

    @property
    def overtakable(self) -> tuple[str, ...]:
        """The jobs that a checkpoint may overtake."""
        return () if self.by_interval else overtakable(self.jobs, self.aligned)

    @functools.cached_property
    def greedy_jobs(self) -> tuple[str, ...]:
        """The jobs that, in mode at_least_once, take all input that is available."""
        return find_greedy_jobs(self.jobs, self.aligned, self.updating) if self.at_least_once else ()

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
        """Return true if all rows that hold in an operator's first input can be made again in its job. across_jobs: if
        all were in one."""
        jobs = {node.name: "" if across_jobs else job.name for job in self.jobs for node in job.stages}
        return can_be_remade(stage.inputs[0], self.stages, self.updating, jobs, jobs[stage.name])

    def wants_retractions(self, stream: str) -> bool:
        """Return true if any stage or sink takes the rows that a stream's new rows replace."""
        if any(stream in stage.inputs for stage in self.stages):
            return True
        sinks = (node for node in self.sinks.values() if node.input == stream)
        return any(node.sink.wants_retractions and not self.never_drops_keys(node) for node in sinks)

    def never_drops_keys(self, sink: SinkNode) -> bool:
        """Return true if rows of this sink are never withdrawn, only replaced under the same key."""
        maker = next((stage for stage in self.stages if stage.name == sink.input), None)
        if not isinstance(maker, OperatorNode):
            return False
        return maker.spec.changelog.never_drops_keys(sink.sink.upserts, not self.updating.isdisjoint(maker.inputs))

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
"""Sinks and stages of one pipeline: the records of a checkpoint name the table of each."""


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
) -> Graph:
    """Return the checked graph, or raise Invalid with all problems and their remedies. mode: the effective setting."""
    by_interval = any(getattr(s.source, "by_interval", False) for s in sources)
    at_least_once = (mode or settings.get("mode")) == "at_least_once"
    if by_interval:
        stages = [replace(stage, keeps_state=False) if isinstance(stage, OperatorNode) else stage for stage in stages]
    problems = [
        *_size_problems(stages, sinks),
        *_bad_names(name, sources, stages, sinks),
        *_declaration_problems(sources, sinks, at_least_once=at_least_once),
        *_operator_problems(stages),
        *gate_problems(stages, by_interval=by_interval, at_least_once=at_least_once),
        *_interval_problems(sources, sinks, at_least_once=at_least_once),
        *(_finish_problems(sources) if finishes else ()),
    ]
    ordered: list[Node] = []
    cycle: list[str] = []
    names = [*(s.name for s in sources), *(s.name for s in sinks), *(n for s in stages for n in (s.name, *s.outputs))]
    names += [s.job for s in (*stages, *sinks) if s.job is not None]
    if all(isinstance(name, str) for name in names):  # else names cannot be compared
        problems += _repeated_names(sources, stages, sinks)
        problems += _wiring_problems(sources, stages, sinks)
        problems += _shared_targets(sinks, place or Place("/"))
        ordered, cycle = _sort_stages(stages)
        if any(sum(s.name == cyclic for s in stages) > 1 for cyclic in cycle):
            cycle = []  # several have this name: it is not clear which one is taken
        problems += event_time_problems(sources, ordered)
        problems += update_problems(ordered, sinks)
        problems += job_problems(ordered, sinks)
        problems += option_problems(settings, ordered, sinks)
        problems += against_problems(ordered, jobs_of(ordered, sinks))
        problems += lookup_problems(ordered, sinks, jobs_of(ordered, sinks), updating_streams(ordered))
    if cycle:
        problems.append(f"stages {', '.join(cycle)} feed each other in a circle: a stage cannot wait for itself")
    if problems:
        raise Invalid(
            f"pipeline {name!r} has {len(problems)} problem{'s' if len(problems) > 1 else ''}:\n"
            + "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, 1)),
            help="fix all of them; nothing has been read or written",
            reason="BAD_PIPELINE",
        )
    updating = updating_streams(ordered)
    ordered, sinks = with_implied_operators(ordered, sinks, updating, forgetting_operators(ordered, updating))
    streams, targets = {s.name: s for s in sources}, {s.name: s for s in sinks}
    return Graph(name, streams, tuple(ordered), targets, dict(settings), at_least_once=at_least_once, finishes=finishes)


def _finish_problems(sources: list[SourceNode]) -> list[str]:
    by_interval = [s.name for s in sources if getattr(s.source, "by_interval", False)]
    if by_interval:
        return [
            f"it finishes by itself, and source {', '.join(by_interval)} reads by data interval: the schedule says "
            "which interval is the last one; leave out finishes"
        ]
    return [
        f"it finishes once its sources have been read to their end, and source {s.name!r} may get more: say "
        "bounded=True there, if it will not"
        for s in sources
        if s.bounded is not True
    ]


def _bad_names(name: str, sources: list[SourceNode], stages: list[Node], sinks: list[SinkNode]) -> list[str]:
    named = [
        ("pipeline", name),
        *(("source", s.name) for s in sources),
        *(("stage", s.name) for s in stages),
        *(("output", output) for s in stages for output in s.outputs),
        *(("sink", s.name) for s in sinks),
        *{repr(s.job): ("job", s.job) for s in (*stages, *sinks) if s.job is not None}.values(),
    ]
    problems = []
    for kind, candidate in named:
        try:
            check_name(kind, candidate)
        except Invalid as error:
            problems.append(f"{error.what}; expected {error.expected}")
    return problems


def _repeated_names(sources: list[SourceNode], stages: list[Node], sinks: list[SinkNode]) -> list[str]:
    streams = Counter([s.name for s in sources] + [s.name for s in stages])
    generated = {s.name: s for s in stages if not isinstance(s, StageNode) and s.generated}
    problems = [
        _same_default_name(generated[n], count)
        if n in generated
        else f"{n!r} names {count} sources or stages: give each its own name"
        for n, count in streams.items()
        if count > 1
    ]
    for stage in stages:
        repeated = [output for output, count in Counter(stage.outputs).items() if count > 1]
        problems += [f"stage {stage.name!r} has output {output!r} more than once" for output in repeated]
    twice = Counter(s.name for s in sinks)
    problems += [f"{n!r} names {count} sinks: give each its own name" for n, count in twice.items() if count > 1]
    return problems


def _same_default_name(stage: OperatorNode | GateNode, count: int) -> str:
    """Ask for explicit names: only the user knows which of them owns the state under this name."""
    part, word = (stage.operator, "uid") if isinstance(stage, OperatorNode) else (stage.gate, "name")
    return (
        f'{count} of {getattr(part, "kind", "gate")} would be called {stage.name!r}: set {word}="…" on each, so that '
        f"their order in the code does not matter; {word}={stage.name!r} on the one that existed before, if any"
    )


def _declaration_problems(sources: list[SourceNode], sinks: list[SinkNode], *, at_least_once: bool) -> list[str]:
    problems = []
    for s in sources:
        if not isinstance(s.source, Source):
            problems.append(f"source {s.name!r} is a {type(s.source).__name__}, not a Source such as Files(…)")
        else:
            problems += [f"source {s.name!r}: {problem}" for problem in [*s.source.problems(), *_pace_problems(s)]]
    for k in sinks:
        if not isinstance(k.sink, Sink):
            problems.append(f"sink {k.name!r} is a {type(k.sink).__name__}, not a Sink such as DeltaAppend(…)")
            continue
        problems += [f"sink {k.name!r}: {problem}" for problem in k.sink.problems()]
        if isinstance(k.sink, AtLeastOnceSink) and not (k.at_least_once or at_least_once):
            problems.append(
                f"sink {k.name!r} can repeat rows after a failure, but the pipeline promises exactly once: "
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
        problems += [f"{subject}: {problem}" for problem in stage.operator.problems()]
        if not stage.keeps_state:
            problems += [
                f"{subject}, in a pipeline that reads by data interval: {problem}"
                for problem in stage.spec.interval_problems
            ]
    return problems


def _interval_problems(sources: list[SourceNode], sinks: list[SinkNode], *, at_least_once: bool) -> list[str]:
    """Check that all sources read by interval, or none, and that each sink can replace one interval's rows."""
    declared = [s for s in sources if isinstance(s.source, Source)]
    by_interval = [s.name for s in declared if s.source.by_interval]
    continuous = [s.name for s in declared if not s.source.by_interval]
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
    return [
        f"sink {k.name!r}, in a pipeline that reads by data interval: {problem}"
        for k in sinks
        if isinstance(k.sink, Sink)
        for problem in k.sink.interval_problems()
    ]


def _wiring_problems(sources: list[SourceNode], stages: list[Node], sinks: list[SinkNode]) -> list[str]:
    streams = {s.name for s in sources} | {stream for stage in stages for stream in stage.produces}
    used = {name for stage in stages for name in stage.inputs} | {sink.input for sink in sinks}
    choices = ", ".join(sorted(streams)) or "none"
    problems = []
    if not sources:
        problems.append("it has no source: add one with pipeline.source(…)")
    if not sinks:
        problems.append("it has no sink, so it would do nothing: add one with stream.sink(…)")
    for stage in stages:
        if not stage.inputs:
            problems.append(f"stage {stage.name!r} has no input: name at least one in @pipeline.stage(…)")
        problems += [
            f"stage {stage.name!r} reads unknown {i!r} (known: {choices})" for i in stage.inputs if i not in streams
        ]
        problems += _signature_problems(stage)
    problems += [
        f"sink {s.name!r} takes unknown {s.input!r} (known: {choices})" for s in sinks if s.input not in streams
    ]
    problems += [f"source {s.name!r} is read by nothing: use it or remove it" for s in sources if s.name not in used]
    problems += [
        f"stage {s.name!r} feeds nothing: use it or remove it" for s in stages if not used.intersection(s.produces)
    ]
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
    for s in sinks:
        if isinstance(s.sink, Sink) and not s.sink.problems():
            try:
                targets.setdefault(s.sink.target(place), []).append(s.name)
            except Invalid as error:
                problems.append(f"sink {s.name!r}: {error.what}; expected {error.expected}")
    return problems + [
        f"sinks {', '.join(names)} write to one target {target}: union their streams in a stage, or use two tables"
        for target, names in targets.items()
        if len(names) > 1
    ]


def _sort_stages(stages: list[Node]) -> tuple[list[Node], list[str]]:
    """Sort stages topologically, in the declared order where possible; return also the names of those in cycles."""
    ordered: list[Node] = []
    waiting = list(stages)
    while waiting:
        unmade = {stream for stage in waiting for stream in stage.produces}
        ready = [stage for stage in waiting if not unmade.intersection(stage.inputs)]
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
