"""Errors, as the API answers with them."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from tidegate.errors import Invalid, Rejected, Unavailable

__all__ = ["ERRORS", "told"]


class Told(BaseModel):
    """An error that says what to do."""

    reason: str = Field(description="A stable code", examples=["NO_SUCH_CHECKPOINT"])
    what: str
    expected: str
    help: str


class Failed(BaseModel):
    """What is answered instead."""

    error: Told


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Failed, "description": "What was asked for makes no sense here"},
    404: {"model": Failed, "description": "There is no such pipeline, checkpoint, gate or row"},
    409: {"model": Failed, "description": "Not now, or not any more"},
    503: {"model": Failed, "description": "Storage does not answer, or something is damaged"},
}


def told(request: Request, error: Any) -> JSONResponse:
    """An error of ours, as one that says what to do."""
    kinds = {Invalid: 400, Rejected: 409, Unavailable: 503}
    status = 404 if error.reason.startswith("NO_SUCH") else kinds.get(type(error), 500)
    body = {"reason": error.reason, "what": error.what, "expected": error.expected, "help": error.help}
    return JSONResponse({"error": body}, status_code=status)
