"""The baselines of the comparison on real documents."""

import jax
import pytest

from experiments.arguments import parse
from experiments.sweeps.real_documents import CORPORA, sweep
from flaxnmt.models.families import example_inputs, module

VOCABULARY = 4000


def parameters(trial):
    config = parse([trial.config, "--run", "run", *trial.options]).resolved().model
    model = module(config, VOCABULARY, VOCABULARY)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *example_inputs(config, 2)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_model_without_context_has_as_many_parameters_as_the_largest_with_it(corpus):
    counts = {
        trial.name: parameters(trial) for trial in sweep.trials if trial.config == corpus and trial.seed == 1
    }
    deeper = counts.pop(f"{corpus}-deeper")
    assert len(counts) == 5
    assert 0.99 < deeper / max(counts.values()) < 1.01
