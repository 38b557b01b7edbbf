"""The declared graph: its parts, everything that can be wrong with it, and how it is cut into jobs."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.errors import Invalid
from tidegate.pipeline.graph.event_time import event_time_problems
from tidegate.pipeline.graph.fingerprint import function_fingerprint, logic_of
from tidegate.pipeline.graph.gated import GateNode, gate_problems
from tidegate.pipeline.graph.jobs import Job, ahead, cut, job_problems, jobs_of, overtakable
from tidegate.pipeline.graph.nodes import Node, OperatorNode, SinkNode, SourceNode, StageNode
from tidegate.pipeline.graph.updates import update_problems, updating_streams
from tidegate.pipeline.hooks import Hook, OnSuspended
from tidegate.records.codec import fingerprint
from tidegate.records.names import check_name
from tidegate.records.place import Place
from tidegate.sinks.base import AtLeastOnceSink, Sink
from tidegate.sinks.channel import Channel
from tidegate.sources.adaptive import Adaptive
from tidegate.sources.base import Source

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
    """What is wrong with the operators that gates are against. jobs: in which one each stage is."""
    operators = {stage.name: stage for stage in ordered if isinstance(stage, OperatorNode)}
    found = []
    for gated in ordered:
        uid = getattr(gated.gate, "against", None) if isinstance(gated, GateNode) else None
        if not isinstance(uid, str) or not isinstance(gated, GateNode):
            continue
        what = f"gate {gated.name!r} is against {uid!r}"
        if uid not in operators:
            known = ", ".join(sorted(operators)) or "there is none"
            found.append(f"{what}, which is no operator: expected the uid of one ({known})")
            continue
        by, asked = operators[uid].operator.known_by, list(getattr(gated.gate, "by", []))
        if by is None:
            found.append(f"{what}, which forgets keys: expected a deduplicate, latest or aggregate without end")
        elif sorted(by) != sorted(asked):
            found.append(f"{what}, which knows {', '.join(by)}, and not {', '.join(asked)}: judge by the same columns")
        elif jobs[uid] != jobs[gated.name]:
            found.append(
                f"{what} of job {jobs[uid]!r}, and is in {jobs[gated.name]!r}: what is remembered there is only known "
                "there: put both into one, with .job(…)"
            )
    return found


class Lineage:
    """Of one graph, the way of each stream."""

    def __init__(self, stages: Sequence[Node]) -> None:
        self._made = {name: stage for stage in stages for name in stage.produces}
        self._ways: dict[str, str] = {}
        self._sources: dict[str, list[str]] = {}

    def origins(self, stream: str) -> list[str]:
        """The nearest sources and operators whose rows these are, through stages and gates."""
        stage = self._made.get(stream)
        if stage is None or isinstance(stage, OperatorNode):
            return [stream if stage is None else stage.name]
        return sorted({name for each in stage.inputs for name in self.origins(each)})

    def sources(self, stream: str) -> list[str]:
        """All sources that the rows come from, through whatever it is."""
        if stream not in self._sources:
            stage = self._made.get(stream)
            found = {name for each in stage.inputs for name in self.sources(each)} if stage is not None else {stream}
            self._sources[stream] = sorted(found)
        return self._sources[stream]

    def way(self, stream: str) -> str:
        """A hash of what lies between those origins and the stream: of stages what they do, not how it is written.

        Gates pass rows as they are. Of operators counts how they replace rows: what they take back must be the same.
        """
        if stream not in self._ways:
            self._ways[stream] = fingerprint({"way": self._way(stream)})
        return self._ways[stream]

    def _way(self, stream: str) -> object:
        stage = self._made.get(stream)
        if stage is None:
            return "a source"
        if isinstance(stage, GateNode):
            return self.way(stage.input)
        output = stream.removeprefix(stage.name)
        if isinstance(stage, StageNode):
            return [logic_of(stage.function), output, [self.way(each) for each in stage.inputs]]
        return [stage.name, output, stage.operator.replacing]


def lookups(stages: Sequence[Node]) -> frozenset[str]:
    """Their names."""
    return frozenset(stage.name for stage in stages if isinstance(stage, OperatorNode) and stage.operator.gives_all)


def lookup_problems(
    stages: Sequence[Node], sinks: Sequence[SinkNode], jobs: Mapping[str, str], updating: frozenset[str]
) -> list[str]:
    """Who takes one must know what it is. jobs: in which each stage is. updating: streams that replace rows."""
    found, problems = lookups(stages), []
    for stage in stages:
        looked_up = [name for name in stage.inputs if name in found]
        if not looked_up:
            continue
        what = f"{stage.name!r} takes {', '.join(looked_up)}"
        beside = [name for name in stage.inputs if name not in found]
        if not isinstance(stage, StageNode):
            problems.append(f"{what}, all of it in each checkpoint: look it up in a stage, and go on behind that")
        elif not beside:
            problems.append(f"stage {what} and nothing else: name the rows that it is looked up for, too")
        elif replacing := [name for name in beside if name in updating]:
            problems.append(
                f"stage {what} beside {', '.join(replacing)}, whose replaced rows would be looked up in what holds now,"
                " not in what held then: put it in front of what replaces rows"
            )
        problems += [
            f"stage {what} of job {jobs[name]!r} in job {jobs[stage.name]!r}: "
            f"say .job({jobs[stage.name]!r}) in front of .broadcast(…), so that only changes go there"
            for name in looked_up
            if jobs[name] != jobs[stage.name]
        ]
    problems += [
        f"sink {sink.name!r} takes {sink.input}, all of it in each checkpoint: "
        "let it take .latest(…) of the same rows, which gives what has changed"
        for sink in sinks
        if sink.input in found
    ]
    return problems


@dataclass(frozen=True)
class Graph:
    """A checked pipeline. Stages are in an order in which each comes behind its inputs."""

    name: str
    sources: Mapping[str, SourceNode]
    stages: tuple[Node, ...]
    sinks: Mapping[str, SinkNode]
    settings: Mapping[str, object]
    on_suspended: tuple[OnSuspended, ...] = ()
    hooks: tuple[Hook, ...] = ()
    aligned: frozenset[str] = frozenset()
    """Jobs that every checkpoint waits for, because the code says so."""
    at_least_once: bool = False

    @property
    def by_interval(self) -> bool:
        """Whether this is an interval pipeline: each run reads what belongs to its data interval, and nothing else."""
        return all(s.source.by_interval for s in self.sources.values())

    @functools.cached_property
    def tables(self) -> Mapping[str, SinkNode]:
        """All that checkpoints are published on: the sinks, the tables of keyed states, and quarantines."""
        states = {
            name: SinkNode(name, sink, stage.name)
            for stage in self.stages
            if isinstance(stage, OperatorNode)
            for name, sink in stage.states.items()
        }
        aside = {name: SinkNode(name, sink, g.name) for g in self.gates for name, sink in g.quarantine.items()}
        return {**self.sinks, **states, **aside}

    @functools.cached_property
    def parts(self) -> int:
        """The most that a record tells of beside each other, in a payload each: tables, sources, channels or gates."""
        return max(map(len, (self.tables, self.sources, self.channels, self.gates)))

    @functools.cached_property
    def lineage(self) -> Lineage:
        """Where streams come from, and what they have come through."""
        return Lineage(self.stages)

    def replacers(self, stream: str) -> list[str]:
        """The nearest operators that replace rows of this stream."""
        return [name for name in self.lineage.origins(stream) if name in self.updating]

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        """The stages that remember."""
        return tuple(stage for stage in self.stages if isinstance(stage, OperatorNode))

    @property
    def gates(self) -> tuple[GateNode, ...]:
        """The gates, in the order in which rows come to them."""
        return tuple(stage for stage in self.stages if isinstance(stage, GateNode))

    @functools.cached_property
    def jobs(self) -> tuple[Job, ...]:
        """What runs together, in an order in which each comes behind those that it takes from."""
        return cut(self.sources.values(), self.stages, self.sinks.values())

    @functools.cached_property
    def channels(self) -> Mapping[str, Channel]:
        """What goes from job to job, by stream."""
        return {name: Channel(name) for job in self.jobs for name in job.gives}

    @functools.cached_property
    def takes(self) -> Mapping[str, dict[str, str]]:
        """By job, the streams that it takes from others, and the jobs that make them."""
        made = {stream: job.name for job in self.jobs for stream in job.gives}
        return {job.name: {stream: made[stream] for stream in job.takes} for job in self.jobs if job.takes}

    @property
    def overtakable(self) -> tuple[str, ...]:
        """The jobs that a checkpoint may go past."""
        return () if self.by_interval else overtakable(self.jobs, self.aligned)

    @functools.cached_property
    def ahead(self) -> tuple[str, ...]:
        """The jobs that take all that is there, at least once."""
        return ahead(self.jobs, self.aligned, self.updating) if self.at_least_once else ()

    def job_of(self, table: str) -> str | None:
        """The job that stages what is published on a table."""
        for job in self.jobs:
            staged = [s.name for s in job.sinks] + [name for part in job.operators for name in part.states]
            if table in staged or any(table in gated.quarantine for gated in job.gates):
                return job.name
        return None

    def job(self, name: str) -> Job:
        """The job with this name."""
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
        """The streams whose rows replace others that they gave before."""
        return updating_streams(self.stages)

    def replaced_is_taken(self, stream: str) -> bool:
        """Whether anyone takes the rows that a stream's new ones replace."""
        sinks = (each for each in self.sinks.values() if each.input == stream)
        behind = any(stream in stage.inputs for stage in self.stages)
        return behind or any(each.sink.takes_replaced and not self.keeps(each) for each in sinks)

    def keeps(self, sinking: SinkNode) -> bool:
        """Whether no row with a key of this sink's is ever withdrawn, only replaced under the same key."""
        made = next((stage for stage in self.stages if stage.name == sinking.input), None)
        if not isinstance(made, OperatorNode):
            return False
        return made.operator.keeps(sinking.sink.upserts, not self.updating.isdisjoint(made.inputs))

    def code_fingerprint(self) -> str:
        """Changes when the graph, an operator's settings or a stage's code changes."""
        cut = {job.name: sorted(job.names) for job in self.jobs}
        return fingerprint(
            {
                **({"jobs": cut} if len(cut) > 1 else {}),
                "sources": {
                    name: [s.source.kind, s.source.describe(), *([s.event_time, s.watermark] if s.event_time else [])]
                    for name, s in self.sources.items()
                },
                "stages": {s.name: [s.inputs, s.outputs, _made_of(s)] for s in self.stages},
                "sinks": {name: [s.sink.kind, s.input, s.sink.describe()] for name, s in self.sinks.items()},
            }
        )


def build_graph(
    name: str,
    sources: list[SourceNode],
    stages: list[Node],
    sinks: list[SinkNode],
    settings: Mapping[str, object],
    place: Place | None,
    mode: str | None = None,
) -> Graph:
    """The graph, or Invalid with every problem that it has, each with its remedy. mode: as all settings say."""
    by_interval = any(getattr(s.source, "by_interval", False) for s in sources)
    at_least_once = (mode or settings.get("mode")) == "at_least_once"
    problems = [
        *_bad_names(name, sources, stages, sinks),
        *_declaration_problems(sources, sinks, at_least_once=at_least_once),
        *_operator_problems(sources, stages),
        *gate_problems(stages, by_interval=by_interval, at_least_once=at_least_once),
        *_interval_problems(sources, sinks, at_least_once=at_least_once),
    ]
    ordered: list[Node] = []
    cycle: list[str] = []
    names = [*(s.name for s in sources), *(s.name for s in sinks), *(n for s in stages for n in (s.name, *s.outputs))]
    names += [s.job for s in (*stages, *sinks) if s.job is not None]
    if all(isinstance(name, str) for name in names):  # else nothing can be told by name
        problems += _repeated_names(sources, stages, sinks)
        problems += _wiring_problems(sources, stages, sinks)
        problems += _shared_targets(sinks, place or Place("/"))
        ordered, cycle = _in_order(stages)
        if any(sum(s.name == each for s in stages) > 1 for each in cycle):
            cycle = []  # which of those with one name is taken is not known
        problems += event_time_problems(sources, ordered)
        problems += update_problems(ordered, sinks)
        problems += job_problems(ordered, sinks)
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
    streams, targets = {s.name: s for s in sources}, {s.name: s for s in sinks}
    return Graph(name, streams, tuple(ordered), targets, dict(settings), at_least_once=at_least_once)


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
    for what, given in named:
        try:
            check_name(what, given)
        except Invalid as error:
            problems.append(f"{error.what}; expected {error.expected}")
    return problems


def _repeated_names(sources: list[SourceNode], stages: list[Node], sinks: list[SinkNode]) -> list[str]:
    streams = Counter([s.name for s in sources] + [s.name for s in stages])
    generated = {s.name: s for s in stages if not isinstance(s, StageNode) and s.generated}
    problems = [
        _called_the_same(generated[n], count)
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


def _called_the_same(stage: OperatorNode | GateNode, count: int) -> str:
    """Which of them has the state that lies under this name, nothing but people can tell."""
    part, word = (stage.operator, "uid") if isinstance(stage, OperatorNode) else (stage.gate, "name")
    return (
        f'{count} of {getattr(part, "kind", "gate")} would be called {stage.name!r}: say {word}="…" at each, so that '
        f"nothing depends on their places in the code; {word}={stage.name!r} at the one that has been there, if any"
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


def _pace_problems(sourcing: SourceNode) -> list[str]:
    pace, source = sourcing.pace, sourcing.source
    if pace is None:
        return []
    if not isinstance(pace, Adaptive):
        return [f"max_per_checkpoint is {pace!r}; say Adaptive(…), and fixed bounds where the source is declared"]
    found = [f"max_per_checkpoint: {problem}" for problem in pace.problems()]
    if source.unit is None or source.by_interval:
        found.append("max_per_checkpoint: what it takes cannot be bounded; leave it out")
    return found


def _operator_problems(sources: list[SourceNode], stages: list[Node]) -> list[str]:
    problems = []
    for stage in stages:
        if not isinstance(stage, OperatorNode):
            continue
        what = f"{stage.operator.kind} {stage.name!r}"
        problems += [f"{what}: {problem}" for problem in stage.operator.problems()]
        if any(isinstance(s.source, Source) and s.source.by_interval for s in sources):
            problems.append(
                f"{what} remembers what came before, but the pipeline reads by data interval, in any order: "
                "compute within the interval in a stage, or read whatever is new"
            )
    return problems


def _interval_problems(sources: list[SourceNode], sinks: list[SinkNode], *, at_least_once: bool) -> list[str]:
    """All sources read by interval, or none; and then each sink can replace one interval's rows."""
    known = [s for s in sources if isinstance(s.source, Source)]
    by_interval = [s.name for s in known if s.source.by_interval]
    others = [s.name for s in known if not s.source.by_interval]
    if not by_interval:
        return []
    if others:
        return [
            f"source {', '.join(by_interval)} reads by data interval, {', '.join(others)} reads whatever is new: "
            "let all sources of a pipeline do the one or the other"
        ]
    if at_least_once:
        return [
            f"source {', '.join(by_interval)} reads by data interval, whose rows replace those that it had in the "
            'tables: that is one commit per table, after the decision, so say mode = "exactly_once"'
        ]
    return [
        f"sink {k.name!r}, in a pipeline that reads by data interval: {problem}"
        for k in sinks
        if isinstance(k.sink, Sink)
        for problem in k.sink.interval_problems()
    ]


def _wiring_problems(sources: list[SourceNode], stages: list[Node], sinks: list[SinkNode]) -> list[str]:
    streams = {s.name for s in sources} | {made for stage in stages for made in stage.produces}
    used = {name for stage in stages for name in stage.inputs} | {sink.input for sink in sinks}
    known = ", ".join(sorted(streams)) or "none"
    problems = []
    if not sources:
        problems.append("it has no source: add one with pipeline.source(…)")
    if not sinks:
        problems.append("it has no sink, so it would do nothing: add one with stream.sink(…)")
    for stage in stages:
        if not stage.inputs:
            problems.append(f"stage {stage.name!r} has no input: name at least one in @pipeline.stage(…)")
        problems += [
            f"stage {stage.name!r} reads unknown {i!r} (known: {known})" for i in stage.inputs if i not in streams
        ]
        problems += _signature_problems(stage)
    problems += [f"sink {s.name!r} takes unknown {s.input!r} (known: {known})" for s in sinks if s.input not in streams]
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


def _in_order(stages: list[Node]) -> tuple[list[Node], list[str]]:
    """The stages, each behind its inputs, as declared where that is free; and what is left in circles."""
    ordered: list[Node] = []
    left = list(stages)
    while left:
        waiting_for = {made for stage in left for made in stage.produces}
        ready = [stage for stage in left if not waiting_for.intersection(stage.inputs)]
        if not ready:
            return ordered, [stage.name for stage in left]
        ordered += ready
        left = [stage for stage in left if stage not in ready]
    return ordered, []


def _made_of(stage: Node) -> object:
    if isinstance(stage, OperatorNode):
        code = stage.operator.code()
        return [stage.operator.kind, stage.operator.describe(), function_fingerprint(code) if code is not None else ""]
    if isinstance(stage, GateNode):
        return [stage.gate.kind, stage.gate.describe()]
    return function_fingerprint(stage.function)
