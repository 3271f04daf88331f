"""Which of the cases of a test belong to the fast tests."""

from collections.abc import Iterable

import pytest


def slow_but(fast: Iterable, cases: Iterable) -> list:
    """The cases, those that are not among the fast ones marked slow."""
    fast = list(fast)
    return [case if case in fast else pytest.param(*_values(case), marks=pytest.mark.slow) for case in cases]


def _values(case) -> tuple:
    return case if isinstance(case, tuple) else (case,)
