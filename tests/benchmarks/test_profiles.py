"""What a trace says that a program does."""

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks.profiles import (
    COPIES,
    ELEMENTS,
    NOTHING,
    PRODUCTS,
    REDUCTIONS,
    kinds,
    profile,
    shares,
)


def test_time_is_of_the_first_kind_that_runs():
    spans = [(0, 4, PRODUCTS), (2, 6, ELEMENTS), (5, 7, PRODUCTS), (8, 9, COPIES), (3, 10, COPIES)]
    assert shares(spans, 0, 20) == {PRODUCTS: 0.3, REDUCTIONS: 0, ELEMENTS: 0.05, COPIES: 0.15, NOTHING: 0.5}
    assert shares([(-5, 30, REDUCTIONS)], 0, 20)[REDUCTIONS] == 1
    assert shares([], 0, 1)[NOTHING] == 1


@pytest.mark.parametrize(
    "function, kind",
    [
        (lambda x: x @ x, PRODUCTS),
        (lambda x: jnp.max(x, axis=1), REDUCTIONS),
        (lambda x: jnp.sin(x) * x, ELEMENTS),
        (lambda x: jnp.roll(x.T, 3), COPIES),
    ],
)
def test_a_program_of_one_kind_spends_its_time_on_it(function, kind):
    x = jnp.ones((1500, 1500))
    compiled = jax.jit(function).lower(x).compile()
    assert kind in kinds(compiled.as_text()).values()
    found = profile(lambda: compiled(x).block_until_ready(), compiled.as_text())
    assert sum(found.values()) == pytest.approx(1)
    assert max(found, key=found.get) == kind
