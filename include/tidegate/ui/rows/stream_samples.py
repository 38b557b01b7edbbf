"""Samples of the rows that stages, gates and operators emitted in a checkpoint, as recorded by its jobs."""

from __future__ import annotations

from tidegate.errors import Rejected
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.refusals import no_such_checkpoint
from tidegate.protocol.view import Entry
from tidegate.records.records import SampledRows
from tidegate.ui.answers import PartSamples, StreamSample
from tidegate.ui.pipelines import PipelineRef

__all__ = ["of_part", "sampled_parts"]


def of_part(pipeline: PipelineRef, id: int, part: str) -> PartSamples:
    """Return the samples of a stage, gate or operator, one for each of its streams."""
    ledger = pipeline.ledger()
    entry = ledger.entry(id)
    if entry is None:
        raise no_such_checkpoint(ledger.pipeline, id, expected="one that is retained", help="samples go with it")
    samples = {}
    for name, sample in _samples(ledger, entry).items():
        if _part(name) == part:
            samples[name] = sample
    if not samples:
        raise Rejected(
            f"checkpoint {id} has no sample of the rows of {part!r}",
            expected="a checkpoint made with the setting sample_rows",
            help="set sample_rows, such as 20: later checkpoints keep that many rows of every stage, gate and operator",
            reason="NO_SAMPLE",
        )
    streams = [_describe_stream(name, sample) for name, sample in samples.items()]
    return PartSamples(checkpoint=id, part=part, streams=streams)


def sampled_parts(ledger: Ledger, entry: Entry | None) -> list[str]:
    """Return the stages, gates and operators of which a checkpoint has samples."""
    if entry is None:
        return []
    return sorted({_part(name) for name in _samples(ledger, entry)})


def _samples(ledger: Ledger, entry: Entry) -> dict[str, SampledRows]:
    """Return all samples of a checkpoint, by stream, or none if its plan does not ask for samples."""
    if not entry.plan.config.get("sample_rows"):
        return {}
    by_stream: dict[str, SampledRows] = {}
    for job, acked in sorted(entry.acks.items()):
        samples = ledger.samples(entry.id, job)
        if samples is not None and samples.attempt == acked.ack.attempt:
            by_stream |= samples.streams
    return by_stream


def _part(stream: str) -> str:
    """Return the part that emits a stream. Names of parts contain no dot."""
    return stream.partition(".")[0]


def _describe_stream(name: str, sample: SampledRows) -> StreamSample:
    return StreamSample(
        stream=name,
        columns=sample.columns,
        rows=[dict(zip(sample.columns, row, strict=True)) for row in sample.rows],
        hidden=sample.hidden,
        left_out=sample.left_out,
        problem=sample.problem,
    )
