"""Rules, meshes and shardings of parameters and batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec
from small_models import parameter_shapes, small_model

from flaxnmt.errors import ConfigError
from flaxnmt.sharding import (
    Rules,
    constrain,
    make_mesh,
    owned_rows,
    put_batch,
    tree_shardings,
    unbox,
    use_mesh,
)


def test_spec_follows_the_rules():
    rules = Rules()
    assert rules.spec(("batch", "length", "activation")) == PartitionSpec(("data", "fsdp"), None, None)
    assert rules.spec(("embed", "heads", "kv")) == PartitionSpec("fsdp", "model", None)
    assert rules.spec((None, "vocab")) == PartitionSpec(None, "model")
    assert dataclasses.replace(rules, length="model").spec(("length",)) == PartitionSpec("model")


def test_an_unknown_axis_is_named():
    with pytest.raises(
        ConfigError, match=r"unknown logical axes \['hedas'\]: expected some of \['activation', 'batch'"
    ):
        Rules().spec(("embed", "hedas"))


@pytest.mark.parametrize("names", [("mlp", "vocab"), ("batch", "embed"), ("heads", "length", "mlp")])
def test_two_dimensions_on_one_mesh_axis_are_refused(names):
    with pytest.raises(ConfigError, match="two dimensions on one mesh axis"):
        Rules().spec(names)


@pytest.mark.parametrize(
    "sizes, shape",
    [((-1, 1, 1), (8, 1, 1)), ((2, -1, 2), (2, 2, 2)), ((1, 8, 1), (1, 8, 1)), ((8, 1, -1), (8, 1, 1))],
)
def test_a_mesh_takes_what_is_left(sizes, shape):
    assert tuple(make_mesh(*sizes).shape.values()) == shape


@pytest.mark.parametrize(
    "sizes, message",
    [
        ((3, 1, 1), "needs 3 devices and there are 8"),
        ((-1, 3, 1), "needs 6 devices and there are 8"),
        ((-1, 16, 1), "needs 16 devices and there are 8"),
        ((-1, -1, 1), "at most one is -1"),
        ((0, 8, 1), "sizes are positive"),
        ((8, -2, 1), "sizes are positive"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_in_one_line(sizes, message):
    with pytest.raises(ConfigError, match=message) as error:
        make_mesh(*sizes)
    assert "\n" not in str(error.value)


def test_parameters_lie_as_their_axes_say():
    boxed = parameter_shapes(small_model())
    shardings = tree_shardings(boxed, make_mesh(2, 2, 2))
    layer = shardings["encoder"]["stack"]["layers_0"]
    assert layer["attention"]["sublayer"]["query"].spec == PartitionSpec("fsdp", "model", None)
    assert layer["feed_forward"]["sublayer"]["w_out"].spec == PartitionSpec("model", "fsdp")
    assert layer["attention"]["layer_norm"]["scale"].spec == PartitionSpec(None)
    assert shardings["target_table"]["table"].spec == PartitionSpec("model", "fsdp")
    assert jax.tree.structure(shardings) == jax.tree.structure(unbox(boxed))


def test_parameters_without_axes_are_everywhere():
    shardings = tree_shardings({"w": jax.ShapeDtypeStruct((3, 5), jnp.float32)}, make_mesh(2, 2, 2))
    assert shardings["w"].spec == PartitionSpec()


@pytest.mark.parametrize(
    "mesh, vocab, message",
    [((1, 1, 8), 24, r"'key'.*dimension 2 does not divide by the 8 devices of mesh axes \('model',\)"),
     ((4, 1, 2), 21, r"'target_table.*\(21, 16\): dimension 21 does not divide by the 2 devices")],
)  # fmt: skip
def test_sizes_that_do_not_divide_are_refused_by_name(mesh, vocab, message):
    with pytest.raises(ConfigError, match=message):
        tree_shardings(parameter_shapes(small_model(vocab, vocab)), make_mesh(*mesh))


def test_constrain_is_the_identity_outside_of_a_mesh():
    x = jnp.ones((8, 4))
    assert constrain(x, "batch", "activation") is x
    assert constrain(x, "no such axis", None) is x


def test_constrain_is_live_inside_of_a_mesh():
    with use_mesh(make_mesh(2, 2, 2)) as mesh:
        y = jax.jit(lambda x: constrain(x * 2, "batch", "vocab"))(jnp.ones((8, 4)))
        assert y.sharding == NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "model"))
        assert {shard.data.shape for shard in y.addressable_shards} == {(2, 2)}
        with pytest.raises(ValueError, match="no such axis"):
            jax.jit(lambda x: constrain(x, "no such axis", None))(jnp.ones((8, 4)))
    assert not nn.get_logical_axis_rules()


def test_other_rules_hold_inside_of_their_mesh():
    with use_mesh(make_mesh(2, 2, 2), dataclasses.replace(Rules(), activation="model")):
        y = jax.jit(lambda x: constrain(x, "batch", "activation"))(jnp.ones((8, 4)))
    assert y.sharding.spec == PartitionSpec(("data", "fsdp"), "model")


@pytest.mark.parametrize("sizes, rows", [((8, 1, 1), 1), ((1, 8, 1), 1), ((2, 2, 2), 2)])
def test_a_batch_is_laid_over_data_and_fsdp(sizes, rows):
    mesh, batch = make_mesh(*sizes), {"source": np.arange(24, dtype=np.int32).reshape(8, 3)}
    placed = put_batch(batch, mesh)["source"]
    np.testing.assert_array_equal(placed, batch["source"])
    assert {shard.data.shape for shard in placed.addressable_shards} == {(rows, 3)}
    assert owned_rows(8, mesh).tolist() == list(range(8))


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(
        ConfigError, match="batches of 12 rows do not divide by the 8 devices.*--data.rows-multiple"
    ):
        owned_rows(12, make_mesh(4, 2, 1))
    assert owned_rows(12, make_mesh(2, 2, 2)).tolist() == list(range(12))
