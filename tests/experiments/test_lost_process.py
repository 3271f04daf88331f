"""Errors by which a process knows that another one is gone."""

import jax
import pytest

from experiments.process import of_lost_process

GLOO = jax.errors.JaxRuntimeError("FAILED_PRECONDITION: Gloo all-reduce failed: Connection closed by peer")


def raised(*errors):
    """The last error, raised while each of those before it was on its way."""
    try:
        try:
            raise errors[0]
        finally:
            if errors[1:]:
                raise errors[1]
    except Exception as error:
        return error


@pytest.mark.parametrize("later", [(), (RuntimeError("Array has been deleted"),)])
def test_the_error_of_a_lost_process_is_found_behind_what_came_of_it(later):
    assert of_lost_process(raised(GLOO, *later)) is GLOO


@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED"), ValueError("Gloo")])
def test_other_errors_are_defects(error):
    assert of_lost_process(raised(error, RuntimeError("late"))) is None
