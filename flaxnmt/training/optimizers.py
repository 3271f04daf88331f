"""Adam and AdamW with clipping, out of optax.

Under jit an update is three fused loops a parameter (two moments, the parameter itself) and no copies,
provided that the donated state goes in and comes out as one pytree of one structure.
"""

import jax
import optax

from flaxnmt.config import OptimizerConfig
from flaxnmt.errors import ConfigError
from flaxnmt.typing import PyTree

UNDECAYED = ("bias", "scale", "table", "embedding")
"""Parameters outside of weight decay, by the last word of their name; those that begin with `b_` are, too."""


def decay_mask(params: PyTree) -> PyTree:
    """True for the parameters that weight decay shrinks: the matrices of the layers.

    Biases and the scales of norms are left alone, as is customary since BERT, and so are embedding tables,
    whose rows would otherwise shrink at every step in which their token does not occur. Names decide, since
    an attention kernel [D, H, K] and a bias that is stacked over layers both have several dimensions.
    """

    def decays(path, leaf):
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        words = names[-1].split("_")
        return leaf.ndim >= 2 and words[0] != "b" and words[-1] not in UNDECAYED

    return jax.tree_util.tree_map_with_path(decays, params)


def make_optimizer(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Clipping by the global norm (if configured), then Adam (Kingma & Ba 2015) or AdamW.

    AdamW is that of Loshchilov & Hutter 2019 with the decay multiplied by the scheduled rate, on the
    parameters of `decay_mask`.

    Raises:
      ConfigError: for weight decay with Adam, or a norm to clip to that is not positive.
    """
    moments = dict(b1=config.b1, b2=config.b2, eps=config.eps)
    if config.name == "adamw":
        adam = optax.adamw(schedule, **moments, weight_decay=config.weight_decay, mask=decay_mask)
    elif config.weight_decay:
        raise ConfigError(
            f"optimizer.weight_decay is {config.weight_decay} and Adam has none: use --optimizer.name adamw"
        )
    else:
        adam = optax.adam(schedule, **moments)
    if config.clip_norm is None:
        return adam
    if config.clip_norm <= 0:
        raise ConfigError(f"optimizer.clip_norm is {config.clip_norm}: give a positive norm or None")
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adam)
