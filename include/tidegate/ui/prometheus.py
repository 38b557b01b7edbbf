"""The numbers of all pipelines that the caller may see, for Prometheus: it shows a token, as scripts do."""

from __future__ import annotations

from airflow.api_fastapi.common.db.common import SessionDep
from fastapi import APIRouter, Response

from tidegate import seams
from tidegate.checkpoint.metrics import Metric, figures, metrics
from tidegate.checkpoint.prometheus import CONTENT_TYPE, prometheus_text
from tidegate.errors import TidegateError
from tidegate.ui.access import LOGGED_IN, Readable
from tidegate.ui.pipelines import Known, known_pipelines

__all__ = ["router"]

router = APIRouter()


@router.get(
    "/metrics",
    dependencies=LOGGED_IN,
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'tidegate_suspended{pipeline="orders"} 0\n'}}}},
)
def scrape(session: SessionDep, readable: Readable) -> Response:
    """Prometheus' text format: what `tidegate metrics` prints. One that cannot be read hides no other."""
    found = {each.card.pipeline: _metrics(each) for each in known_pipelines(session, readable)}
    return Response(prometheus_text(found), media_type=CONTENT_TYPE)


def _metrics(known: Known) -> list[Metric]:
    try:
        # Whether a process of somewhere else has died is nothing that the web server could tell.
        return metrics(figures(known.ledger(), known, known.options, lambda plan: None, seams.now()))
    except TidegateError:
        return [Metric("readable", 0)]
