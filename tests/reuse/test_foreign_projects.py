"""Layers of flaxnmt in models that know nothing of its configurations or its trainer."""

import foreign_linen
import foreign_nnx
import numpy as np
import pytest


@pytest.fixture(scope="module")
def linen_losses():
    return foreign_linen.train(boxed=True)


def learned(losses) -> bool:
    """Whether sequences of eight symbols, log 8 = 2.08 at first, came to be reversed almost without error."""
    return losses[0] > 1.9 and np.mean(losses[-10:]) < 0.1


def test_a_linen_model_learns_with_our_blocks_and_encoders(linen_losses):
    assert learned(linen_losses)


@pytest.mark.slow
def test_unboxed_parameters_train_alike(linen_losses):
    np.testing.assert_allclose(foreign_linen.train(boxed=False, steps=8), linen_losses[:8], rtol=1e-4)


@pytest.mark.slow
def test_an_nnx_model_learns_through_the_bridge():
    assert learned(foreign_nnx.train())
