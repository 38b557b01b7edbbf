"""Stories are told hundreds of times each, with others in between at every access."""

from collections.abc import Iterator

import pytest

from tests.simulation.simulate import decoded_once


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with decoded_once():
        yield
