"""Cases of which each run of `make test` takes some, and `make test-long` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def in_portions(cases: Iterable[Any], nth: int) -> list[Any]:
    """Return two parameters: every nth case from the first on, and all others, marked `long`.

    nth shares no divisor with what repeats among the cases (sizes, lengths, exchanges), so that each kind is in both.
    """
    cases = list(cases)
    some, others = cases[::nth], [case for at, case in enumerate(cases) if at % nth]
    return [pytest.param(some, id="some"), pytest.param(others, id="others", marks=pytest.mark.long)]
