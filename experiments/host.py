"""The machine on which a number was measured."""

import os
import platform
from pathlib import Path


def cpu() -> str:
    """Model of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine()


def cores() -> set[int]:
    """Those that this process may use: trials that run beside each other share those of their machine."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
