"""Names for operators and gates that were given none. They follow from what each is, never from its place in the code:
so nothing that is written above or below it gives its state to another.

    aggregate-paid-customer_id          kind, streams that it takes, what tells it from others of its kind behind them

Two that would be called the same are refused when declared, until both have names of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from tidegate.model.codec import sha256

__all__ = ["generated_name"]

LETTERS, DIGITS = 63, 8
"""What a name may have; and what of it is a hash, where words cannot say all."""


def generated_name(words: Iterable[object]) -> str:
    """One name made of these words; with a hash if they are too long, or hold what a name may not."""
    told = [str(word) for word in words]
    text = "-".join(filter(None, (re.sub(r"[^a-z0-9_]+", "-", word.lower()).strip("-_") for word in told)))
    plain = all(re.fullmatch(r"[a-z0-9_. -]+", word) for word in told)
    if plain and 0 < len(text) <= LETTERS:
        return text
    return f"{text[: LETTERS - DIGITS - 1].strip('-_')}-{sha256(msgspec.json.encode(told))[:DIGITS]}".lstrip("-")
