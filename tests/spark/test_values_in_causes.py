"""A checkpoint fails because of a row, and nothing that is recorded or told of it quotes the row."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tidegate.testing
from tests.kit.quoting_pipelines import CANARIES, FAILING, WORD
from tidegate import seams
from tidegate.errors import TidegateError, trace_without_values
from tidegate.history.health import condition, observe
from tidegate.history.metrics import figures, metrics
from tidegate.history.prometheus import prometheus_text
from tidegate.history.query import CheckpointHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUOTES = {"malformed", "miscast", "python_function", "collected", "raised", "contradicting"}
"""Where whoever may read rows gets the value with the error. A gate's are among its findings."""
SAYS = {
    "malformed": "in/1.json, line 1",
    "miscast": 'CAST_INVALID_INPUT] The value … of the type "STRING" cannot be cast to "INT"',
    "python_function": "quoting_pipelines.py, line ",
    "collected": "quoting_pipelines.py, line ",
    "raised": "USER_RAISED_EXCEPTION",
    "contradicting": "1 rows contradict another row with the same key",
    "judged": "2 rows",
}


@pytest.mark.parametrize("name", FAILING)
def test_no_cause_quotes_the_row_that_a_checkpoint_has_failed_for(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
):
    caplog.set_level(logging.DEBUG)
    pipeline = FAILING[name](tmp_path)
    notified: list[Any] = []
    pipeline.on_suspended(notified.append)
    failure: TidegateError | None = None
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        with pytest.raises(TidegateError) as caught:
            running.checkpoint()
        failure = caught.value
        ledger, settings = running.ledger, running.settings
    entry = ledger.entry(1)
    assert entry is not None
    assert entry.decision is not None
    assert entry.aborted
    observed = observe(ledger, settings, lambda plan: None)
    row = CheckpointHistory(ledger, {}).find(1)
    assert row is not None
    verdicts = [verdict for acked in entry.acks.values() for verdict in acked.ack.gates.values()]
    texts = {
        "error": f"{failure}\n{failure!r}",
        "trace": trace_without_values(failure),
        "decision": f"{entry.decision}",
        "plan": f"{entry.plan}",
        "trouble": f"{ledger.trouble()}",
        "notified": f"{notified}",
        "health": f"{condition(observed)}",
        "row": json.dumps(row.document()),
        "verdicts": f"{[(verdict.why, verdict.broken) for verdict in verdicts]}",
        "metrics": prometheus_text({name: metrics(figures(ledger, settings, {}, lambda plan: None, seams.now()))}),
        "log": "\n".join(f"{record.getMessage()}\n{record.exc_text}" for record in caplog.records if _ours(record)),
    }
    assert {where: canary for where, text in texts.items() for canary in CANARIES if canary in text} == {}
    assert SAYS[name] in entry.decision.detail
    assert not entry.plan.quotes_rows
    assert (WORD in failure.quoted or CANARIES[1] in failure.quoted) is (name in QUOTES)


def _ours(record: logging.LogRecord) -> bool:
    """py4j logs what it sends, when it is asked to."""
    return not record.name.startswith(("py4j", "pyspark"))
