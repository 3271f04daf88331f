"""Speed: rates of an interval, the machine's matrix-product peak, and compilations."""

import logging
import resource
import statistics
import time

import jax
import jax.numpy as jnp

log = logging.getLogger(__name__)

# (rows, inner, columns): square, and the shape of logits over a vocabulary. Accelerators need larger ones.
CPU_SIZES = ((1024, 1024, 1024), (2048, 2048, 2048), (256, 4096, 8192))
ACCELERATOR_SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 2048, 8192))
COMPILATION_EVENT = "/jax/core/compile/backend_compile_duration"


def rates(
    seconds: float,
    steps: int,
    target_tokens: float,
    tokens: float,
    slots: float,
    flops: float | None = None,
    peak: float | None = None,
) -> dict[str, float]:
    """Rates of an interval of `steps` updates.

    `target_tokens` counts target tokens without padding, `tokens` those of both sides, `slots` the positions
    of both sides with padding; `flops` is the whole interval's, `peak` in FLOP/s.
    """
    values = {
        "step_seconds": seconds / steps,
        "target_tokens_per_second": target_tokens / seconds,
        "padding": 1 - tokens / slots,
    }
    return values | ({"mfu": flops / seconds / peak} if flops and peak else {})


def measure_matmul_peak(dtype=jnp.float32, budget: float = 0.8) -> float:
    """FLOP/s of one device's matrix product: the best of several sizes, each the median of its runs.

    Takes about `budget` seconds, compilation included; on a slow or busy machine fewer sizes are tried.
    """
    device = jax.local_devices()[0]
    sizes = CPU_SIZES if device.platform == "cpu" else ACCELERATOR_SIZES
    start = time.perf_counter()
    best = 0.0
    for number, size in enumerate(sizes, start=1):
        deadline = start + budget * number / len(sizes)
        if best == 0.0 or time.perf_counter() < deadline:
            best = max(best, _matmul_rate(size, dtype, device, deadline))
    return best


def _matmul_rate(size: tuple[int, int, int], dtype, device: jax.Device, deadline: float) -> float:
    rows, inner, columns = size
    a = jax.device_put(jnp.ones((rows, inner), dtype), device)
    b = jax.device_put(jnp.ones((inner, columns), dtype), device)
    product = jax.jit(jnp.matmul).lower(a, b).compile()
    seconds: list[float] = []
    while not seconds or time.perf_counter() < deadline:
        start = time.perf_counter()
        jax.block_until_ready(product(a, b))
        seconds.append(time.perf_counter() - start)
    return 2 * rows * inner * columns / statistics.median(seconds)


class CompilationCounter:
    """Counts XLA compilations inside its context; after `warm()` each one is logged by name.

    Attributes:
    total: compilations so far.
    late: names of the functions compiled after warm-up.
    """

    def __init__(self):
        self.total = 0
        self.late: list[str] = []
        self._warm = False

    def __enter__(self) -> "CompilationCounter":
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def warm(self) -> None:
        """All shapes are compiled by now."""
        self._warm = True

    def _listen(self, event: str, duration: float, **details: str | int) -> None:
        if event != COMPILATION_EVENT:
            return
        self.total += 1
        if self._warm:
            name = str(details.get("fun_name", "a function"))
            self.late.append(name)
            log.warning("compiled %s after warm-up (%.1f s)", name, duration)


def peak_memory() -> int:
    """Most bytes in use so far: of the fullest accelerator, or of this process where the devices are its cores."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [entry["peak_bytes_in_use"] for entry in stats if "peak_bytes_in_use" in entry]
    return max(peaks, default=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
