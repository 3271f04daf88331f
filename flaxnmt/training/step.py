"""The training step: pure, jitted over the mesh, blind to what kind of model it trains.

A model enters as an objective, a function from parameters, batch and key to the sums of a batch. Sums and
counts are global; the one division is by the number of target tokens of the whole update, so the loss does
not depend on the mesh, the number of processes or how an update is split into accumulated batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxnmt.sharding import compiler_options
from flaxnmt.training.averaging import ema_update, keep_if_finite
from flaxnmt.training.state import TrainState
from flaxnmt.typing import Array, Float, Params, PRNGKeyArray, PyTree

Sums = dict[str, Float[Array, ""]]
"""At least `loss` (differentiated), `nll` and `tokens` (the count that divides)."""

Objective = Callable[[Params, PyTree, PRNGKeyArray | None, Array], Sums]
"""(params, batch, key, update) -> sums over the batch; without a key nothing is random."""

Metrics = dict[str, Float[Array, ""]]


@dataclass(frozen=True)
class TrainStep:
    """Jitted functions over one objective and one optimizer.

    Attributes:
      objective: what is minimised.
      optimizer: applied to the gradient of the mean loss.
      schedule: learning rate by update, for the metrics.
      ema: decay of the moving average, or None.
    """

    objective: Objective
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    ema: float | None = None

    def gradients(
        self, params: Params, batch: PyTree, seed: Array, index: Array, update: Array
    ) -> tuple[PyTree, Sums]:
        """Gradient of the summed loss and the sums of one batch; `index` counts batches, for the key."""
        key = jax.random.fold_in(jax.random.key(seed), index)

        def loss(params):
            sums = self.objective(params, batch, key, update)
            return sums["loss"], sums

        (_, sums), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return gradients, sums

    def update(self, state: TrainState, gradients: PyTree, sums: Sums) -> tuple[TrainState, Metrics]:
        """One update from summed gradients; dropped and counted where loss or gradient is not finite."""
        count = jnp.maximum(sums["tokens"], 1)
        gradients = jax.tree.map(lambda g: g / count.astype(g.dtype), gradients)
        norm = optax.tree.norm(gradients)
        updates, opt_state = self.optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = None if self.ema is None else ema_update(state.ema, params, self.ema, state.step)
        new, old = (params, opt_state, ema), (state.params, state.opt_state, state.ema)
        (params, opt_state, ema), bad = keep_if_finite((sums["loss"], norm), new, old, state.bad)
        metrics = {name: value / count for name, value in sums.items() if name != "tokens"}
        metrics |= {
            "tokens": sums["tokens"],
            "gradient_norm": norm,
            "learning_rate": jnp.asarray(self.schedule(state.step - state.bad.total), jnp.float32),
            "bad_steps": bad.total,
            "bad_in_a_row": bad.in_a_row,
        }
        return TrainState(state.step + 1, params, opt_state, ema, bad), metrics

    def whole(self, state: TrainState, batch: PyTree, seed: Array) -> tuple[TrainState, Metrics]:
        """An update from a single batch."""
        return self.update(state, *self.gradients(state.params, batch, seed, state.step, state.step))


@dataclass(frozen=True)
class CompiledStep:
    """`TrainStep` under jit: state in, state out, buffers reused.

    Attributes:
      step: the pure functions.
      shardings: of the state.
      seed: of dropout and everything else that is drawn; an argument of the programs, which all seeds share.
      accumulate: batches an update.
    """

    step: TrainStep
    shardings: TrainState
    seed: int
    accumulate: int = 1

    def __post_init__(self):
        state = self.shardings
        jit = partial(jax.jit, compiler_options=compiler_options(state.step.mesh))
        jitted = {
            "_whole": jit(self.step.whole, donate_argnums=0, out_shardings=(state, None)),
            "_first": jit(self.step.gradients, out_shardings=(state.params, None)),
            "_next": jit(self._add, donate_argnums=0, out_shardings=(state.params, None)),
            "_update": jit(self.step.update, donate_argnums=0, out_shardings=(state, None)),
        }
        for name, function in jitted.items():
            object.__setattr__(self, name, function)

    def calls(self, state: TrainState, batch: PyTree) -> list[tuple[Callable, tuple, int]]:
        """What an update from batches of these shapes calls: jitted functions, their arguments, how often.

        For compiling ahead: `state` and `batch` are shapes with shardings, and so are the arguments.
        """
        if self.accumulate == 1:
            return [(self._whole, (state, batch, self._seed), 1)]
        one = state.params, batch, self._seed, state.step, state.step
        # Gradients have the shapes of the parameters and lie as they do.
        gradients, (_, sums) = state.params, jax.eval_shape(self._first, *one)
        return [
            (self._first, one, 1),
            (self._next, (gradients, sums, *one), self.accumulate - 1),
            (self._update, (state, gradients, sums), 1),
        ]

    @property
    def _seed(self) -> np.uint32:
        # Of NumPy, which every process puts on all devices by itself.
        return np.uint32(self.seed)

    def _add(self, gradients, sums, params, batch, seed, index, update):
        more = self.step.gradients(params, batch, seed, index, update)
        return jax.tree.map(jnp.add, (gradients, sums), more)

    def __call__(self, state: TrainState, batches: list[PyTree]) -> tuple[TrainState, Metrics]:
        """One update from `accumulate` batches, which may differ in shape."""
        if self.accumulate == 1:
            return self._whole(state, batches[0], self._seed)
        index = state.step * self.accumulate
        gradients, sums = self._first(state.params, batches[0], self._seed, index, state.step)
        for offset, batch in enumerate(batches[1:], start=1):
            gradients, sums = self._next(
                gradients, sums, state.params, batch, self._seed, index + offset, state.step
            )
        return self._update(state, gradients, sums)
