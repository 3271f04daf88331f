"""What training carries from update to update, made already sharded."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxnmt.sharding import Rules, tree_shardings, unbox
from flaxnmt.training.averaging import BadSteps
from flaxnmt.typing import Array, Int, Params, PyTree


@struct.dataclass
class TrainState:
    """Attributes:
    step: updates so far, dropped ones included; data order and randomness follow from it.
    params: float32 parameters.
    opt_state: of the optimizer.
    ema: moving average of the parameters, or None.
    bad: updates dropped because loss or gradient was not finite.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: PyTree
    ema: Params | None
    bad: BadSteps


def make_state(params: Params, optimizer: optax.GradientTransformation, ema: bool) -> TrainState:
    """The state before the first update."""
    # A copy, because a donated state must not hold one buffer twice.
    average = jax.tree.map(jnp.copy, params) if ema else None
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), average, BadSteps.zero())


def state_shardings(
    init: Callable[[Any], PyTree],
    optimizer: optax.GradientTransformation,
    ema: bool,
    mesh: Mesh,
    rules: Rules = Rules(),
) -> tuple[TrainState, TrainState]:
    """Shapes and NamedShardings of the state whose boxed parameters are `init(key)["params"]`.

    Moments and averages lie as their parameters do; everything else is on every device.
    """
    boxed = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))["params"]
    params = unbox(boxed)
    by_params = tree_shardings(boxed, mesh, rules)
    whole = NamedSharding(mesh, PartitionSpec())
    shapes = jax.eval_shape(
        lambda: make_state(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params), optimizer, ema)
    )
    moments = optax.tree_map_params(
        optimizer,
        # A parameter that is not trained has no moments.
        lambda moment, sharding: moment if _is_absent(moment) else sharding,
        shapes.opt_state,
        by_params,
        transform_non_params=lambda _: whole,
        is_leaf=_is_absent,
    )
    rest = jax.tree.map(lambda _: whole, shapes.bad)
    return shapes, TrainState(whole, by_params, moments, by_params if ema else None, rest)


def _is_absent(leaf: PyTree) -> bool:
    return isinstance(leaf, optax.MaskedNode)


def init_state(
    init: Callable[[Any], PyTree],
    optimizer: optax.GradientTransformation,
    ema: bool,
    shardings: TrainState,
    seed: int,
) -> TrainState:
    """Draws the parameters, each device its own part; the same values on every mesh."""
    (device, *_) = jax.tree.leaves(shardings)[0].device_set
    start = jax.jit(
        lambda key: make_state(unbox(init(key)["params"]), optimizer, ema),
        out_shardings=shardings,
        # It runs once, and LLVM would think about it for many times as long.
        compiler_options={"xla_backend_optimization_level": 0} if device.platform == "cpu" else None,
    )
    return start(jax.random.key(seed))
