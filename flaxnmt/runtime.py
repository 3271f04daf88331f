"""Process-wide settings that entry points make once, before the first computation; never made at import."""

import ctypes
import ctypes.util
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> bool:
    """Lets glibc keep freed blocks for the next step in place of returning them to the kernel.

    XLA on CPU frees and allocates every buffer of a step anew; by default glibc maps each large one from the
    kernel, and the page faults cost more than most element-wise operations. Returns whether it was possible.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    # One arena, because the heaps of the others are given back whole; a threshold of -1 never trims.
    settings = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 2**26))
    accepted = [libc.mallopt(name, value) == 1 for name, value in settings]
    return all(accepted)
