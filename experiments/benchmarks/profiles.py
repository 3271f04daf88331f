"""What a CPU does in the time of a compiled program: a trace of it, read by kind of operation."""

import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import jax
import numpy as np

PRODUCTS, REDUCTIONS, COPIES, ELEMENTS, NOTHING = (
    "matrix products",
    "reductions",
    "copies and transposes",
    "element-wise",
    "not in the trace",
)
KINDS = (PRODUCTS, REDUCTIONS, ELEMENTS, COPIES, NOTHING)
"""Where several run at a time, on several cores, the time is of the first of them. A product that XLA hands to other threads
runs on after its record has ended, so that a part of what is not in the trace is products."""

INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (?:\([^=]*?\)|\S+) ([\w\-]+)\((.*)$")
COMPUTATION = re.compile(r"^%?([\w.\-]+) \(.*\{$")
CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")
CONTROL = ("while", "conditional", "call")
MOVES = {
    "copy",
    "transpose",
    "bitcast",
    "slice",
    "concatenate",
    "pad",
    "reshape",
    "dynamic-slice",
    "parameter",
}

Span = tuple[float, float, str]
"""Beginning and end of an operation, in one unit, and its kind."""


def kinds(program: str) -> dict[str, str]:
    """Kind of every operation of an optimised program, as XLA prints it; loops and calls, which hold others, are left out."""
    bodies: dict[str, list[tuple[str, str, str]]] = {}
    body: list[tuple[str, str, str]] = []
    for line in program.splitlines():
        if start := COMPUTATION.match(line.removeprefix("ENTRY ")):
            body = bodies.setdefault(start[1], [])
        elif found := INSTRUCTION.match(line):
            body.append((found[1], found[2], found[3]))

    def codes(opcode: str, rest: str) -> set[str]:
        called = CALLED.search(rest)
        if opcode not in ("fusion", "custom-call") or called is None:
            return {opcode}
        return {one for _, code, inner in bodies.get(called[1], []) for one in codes(code, inner)}

    return {
        name: _kind(codes(opcode, rest))
        for body in bodies.values()
        for name, opcode, rest in body
        if opcode not in CONTROL
    }


def _kind(codes: set[str]) -> str:
    if codes & {"dot", "convolution"}:
        return PRODUCTS
    if codes & {"reduce", "reduce-window"}:
        return REDUCTIONS
    return COPIES if codes <= MOVES else ELEMENTS


def shares(spans: Iterable[Span], start: float, end: float) -> dict[str, float]:
    """Share of the time from `start` to `end` that belongs to each of `KINDS`; they sum to one."""
    spans = list(spans)
    ticks = np.unique(np.clip([start, end, *(t for span in spans for t in span[:2])], start, end))
    lengths = np.diff(ticks)
    free = np.ones(len(lengths), bool)
    result = {}
    for kind in KINDS[:-1]:
        running = np.zeros(len(ticks))
        for begin, stop, own in spans:
            if own == kind:
                first, last = np.searchsorted(ticks, np.clip([begin, stop], start, end))
                running[first] += 1
                running[last] -= 1
        here = free & (np.cumsum(running)[:-1] > 0)
        result[kind] = float(lengths[here].sum() / (end - start))
        free &= ~here
    return result | {NOTHING: float(lengths[free].sum() / (end - start))}


def profile(run: Callable[[], object], program: str) -> dict[str, float]:
    """`shares` of what `run` waits for, which executes this program only."""
    of = kinds(program)
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            run()
        (trace,) = Path(directory).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(trace))
    spans = [
        (event.start_ns, event.end_ns, of[event.name])
        for plane in data.planes
        for line in plane.lines
        for event in line.events
        if event.name in of
    ]
    return shares(spans, min(span[0] for span in spans), max(span[1] for span in spans))


def in_words(found: dict[str, float]) -> str:
    """Per cent of each kind."""
    return ", ".join(f"{name} {share:.0%}" for name, share in found.items())
