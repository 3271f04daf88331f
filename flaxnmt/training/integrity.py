"""What a checkpoint must still be when it comes back: names, types, shapes and bits of its arrays."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from flaxnmt.errors import RunError
from flaxnmt.typing import Array, PyTree, UInt


def named_leaves(tree: PyTree) -> dict[str, Array]:
    """The leaves by name: the path of keys, attributes and positions joined by '/'."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def layout(tree: PyTree) -> dict[str, str]:
    """Name -> 'float32[512,2048]' of every array; what two trees must share to be exchanged."""
    return {
        name: f"{jnp.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
        for name, leaf in named_leaves(tree).items()
    }


def check_layout(found: dict[str, str], expected: dict[str, str], where: str, shown: int = 10) -> None:
    """Raises RunError with the first differences by name if two layouts are not the same."""
    differences = [
        f"{name} is {found.get(name, 'absent')}, the model has {expected.get(name, 'no such array')}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    if differences:
        count = len(differences)
        more = f"; and {count - shown} more" if count > shown else ""
        raise RunError(
            f"{where} does not fit this configuration in {count} array{'s' if count > 1 else ''}: "
            f"{'; '.join(differences[:shown])}{more}; use that run's configuration or another run directory"
        )


def checksum(x: Array) -> UInt[Array, ""]:
    """Sum of the bit patterns of x, each times an odd number made from its position, modulo 2^32.

    Integer sums do not depend on their order, so the value is the same on every mesh.
    """
    x = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
    words = jax.lax.bitcast_convert_type(x, f"uint{8 * min(x.dtype.itemsize, 4)}").astype(jnp.uint32)
    index = jnp.zeros((), jnp.uint32)
    for axis, size in enumerate(words.shape):
        index = index * size + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return jnp.sum(words * (2 * index + 1), dtype=jnp.uint32)


def checksums(leaves: list[Array]) -> UInt[Array, "leaves"]:
    """The checksum of each array, in one compiled call, replicated over their mesh."""
    return _compiled_checksums(replicated(leaves[0].sharding) if leaves else None)(leaves)


@functools.lru_cache
def _compiled_checksums(out: Sharding | None):
    def array_checksums(leaves: list[Array]) -> UInt[Array, "leaves"]:
        return jnp.stack([checksum(leaf) for leaf in leaves]) if leaves else jnp.zeros(0, jnp.uint32)

    return jax.jit(array_checksums, out_shardings=out)


def replicated(sharding: Sharding | None) -> Sharding:
    """A sharding of the same devices with a whole copy on each; the first device where none is given."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding or SingleDeviceSharding(jax.devices()[0])
