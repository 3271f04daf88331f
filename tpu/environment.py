"""Environment variables of the training, by generation.

Only what a source recommends, and what is not the default already. Asynchronous all-reduce on v5e: OpenXLA, "XLA Flags
Guidance" (docs/flags_guidance.md of openxla/xla, https://openxla.org/xla/flags_guidance), which names two flags that
belong together, of which the second is off by default; for other generations it suggests none for all-reduce. The
limits below which TensorStore gives a transfer up are set by JAX itself on TPU VMs (jax/_src/cloud_tpu_init.py).
"""

from tpu.slices import Generation

LIBTPU_FLAGS = {
    "v5e": (
        "--xla_tpu_enable_async_collective_fusion=true",
        "--xla_tpu_enable_async_collective_fusion_fuse_all_reduce=true",
    ),
}


def environment(generation: Generation, bucket: str, given: dict[str, str]) -> dict[str, str]:
    """Variables of the training: `given` last, so that they win.

    The cache of compiled programs lies in the bucket, since disks of spot machines do not outlive them (JAX,
    "Persistent compilation cache").
    """
    variables = {"JAX_COMPILATION_CACHE_DIR": f"{bucket}/cache/jax", "PYTHONUNBUFFERED": "1"}
    flags = LIBTPU_FLAGS.get(generation.name)
    if flags:
        variables["LIBTPU_INIT_ARGS"] = " ".join(flags)
    return variables | given
