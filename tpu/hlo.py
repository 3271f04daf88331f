"""Reading what a compiled program does from its text: collectives by kind, and how much of it loops repeat."""

import math
import re
from collections import defaultdict
from dataclasses import dataclass

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"),
    *("while", "conditional", "call"),
}
"""Operations that move no bytes themselves."""
SLICES = ("dynamic-slice", "slice", "gather")
UPDATE = "dynamic-update-slice"

ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
# A result is an array or a tuple of them, whose layouts have parentheses, too, but none after a space and a word.
INSTRUCTION = re.compile(r"\s*(ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)")
CALLED = re.compile(
    r"(?:calls|to_apply|condition|body|true_computation|false_computation|branch_computations)=(\{[^}]*\}|%?[\w.-]+)"
)
NAME = re.compile(r"%([\w.-]+)")


@dataclass(frozen=True)
class Instruction:
    """A line of a program.

    Attributes:
      type: of the result.
      opcode: such as `fusion` or `all-gather-start`.
      arguments: the text in parentheses.
      attributes: the text behind them.
      is_root: whether it is the result of its computation.
    """

    type: str
    opcode: str
    arguments: str
    attributes: str
    is_root: bool

    @property
    def operands(self) -> list[str]:
        return NAME.findall(self.arguments)

    def called(self, attribute: str) -> str:
        """The computation that an attribute names."""
        return re.search(rf"\b{attribute}=%?([\w.-]+)", self.attributes)[1]


Computation = dict[str, Instruction]


@dataclass(frozen=True)
class Collective:
    """All collectives of one kind in a run of a program.

    Attributes:
      count: how many; in a loop as often as it goes round.
      bytes: of the whole arrays on one device, added up: of results, or of what a reduce-scatter reads.
    """

    count: int
    bytes: int


@dataclass(frozen=True)
class Summary:
    """What a run of a program does.

    Attributes:
      collectives: by kind.
      repeated: bytes that operations read and write, over those where every loop goes round once.
      unknown: loops that do not say how often they go round, and count once.
    """

    collectives: dict[str, Collective]
    repeated: float
    unknown: int


def summary(text: str) -> Summary:
    """Of a program as `compiled.as_text()` has it."""
    program = parsed(text)
    times, unknown = repetitions(program)
    once = {name: computation_bytes(program, name) for name in executed(program)}
    all_rounds = sum(times[name] * size for name, size in once.items())
    return Summary(collectives(program, times), all_rounds / max(sum(once.values()), 1), unknown)


def array_bytes(text: str) -> list[int]:
    """Bytes of each array that a type names, in order.

    Raises:
      ValueError: for a kind of element that is none.
    """
    return [
        -(-element_bits(kind) * math.prod(map(int, filter(None, sizes.split(",")))) // 8)
        for kind, sizes in ARRAY.findall(text)
    ]


def element_bits(kind: str) -> int:
    """Of bf16, f8e4m3fn, s4, c64, pred, ...; tokens have none.

    Raises:
      ValueError: for a kind that is none.
    """
    if kind in ("pred", "token", "opaque"):
        return 8 * (kind == "pred")
    if (said := re.match(r"(?:bf|[sufc])(\d+)", kind)) is None:
        raise ValueError(f"no bytes are known of elements {kind!r}")
    return int(said[1])


def parsed(text: str) -> dict[str, Computation]:
    """Instructions by name, of each computation; a computation follows those that it calls."""
    program: dict[str, Computation] = {}
    found: Computation = {}
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            found = program[head[1]] = {}
        elif said := INSTRUCTION.match(line):
            root, name, type_, opcode, rest = said.groups()
            arguments, _, attributes = rest.partition("), ")
            found[name] = Instruction(type_, opcode, arguments.rstrip(")"), attributes, root is not None)
    return program


def rounds(loop: Instruction, program: dict[str, Computation]) -> int | None:
    """How often a loop goes round, where the compiler says it or it counts from 0 to a constant; else None."""
    if said := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
        return int(said[1])
    condition = program[loop.called("condition")]
    root = next(one for one in condition.values() if one.is_root)
    limit = condition.get(root.operands[-1]) if root.operands else None
    if "direction=LT" in root.attributes and limit is not None and limit.opcode == "constant":
        return int(limit.arguments)
    return None


def repetitions(program: dict[str, Computation]) -> tuple[dict[str, int], int]:
    """How often each computation runs, and how many loops do not say it."""
    times, unknown = defaultdict(int), 0
    times[next(reversed(program))] = 1
    for name in reversed(program):
        for one in program[name].values():
            if one.opcode in ("async-update", "async-done"):
                continue
            often = rounds(one, program) if one.opcode == "while" else 1
            unknown += often is None
            for called in CALLED.findall(one.attributes):
                for callee in re.findall(r"[\w.-]+", called):
                    times[callee] += times[name] * (often or 1)
    return times, unknown


def collectives(program: dict[str, Computation], times: dict[str, int]) -> dict[str, Collective]:
    """By kind. One that is fused with several operations, to go on meanwhile, is a chain and counts once."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for computation, instructions in program.items():
        for name, one in instructions.items():
            kind = one.opcode.removesuffix("-start")
            if kind not in KINDS:
                continue
            if computation.startswith("all-reduce-scatter"):
                kind = "reduce-scatter"
            chain = re.search(r'chain_id="(\d+)"', one.attributes)
            key = kind, chain[1] if chain else name
            found[key] = max(found.get(key, (0, 0)), (times[computation], moved(one, instructions)))
    return {
        kind: Collective(
            sum(often for (one, _), (often, _) in found.items() if one == kind),
            sum(often * size for (one, _), (often, size) in found.items() if one == kind),
        )
        for kind in sorted({kind for kind, _ in found})
    }


def moved(collective: Instruction, beside: Computation) -> int:
    """Bytes of the whole arrays of one collective."""
    sizes = array_bytes(collective.type)
    match collective.opcode:
        case "reduce-scatter":
            return sum(argument_bytes(collective, beside))
        case "all-gather-start" | "reduce-scatter-start" | "all-to-all-start":
            # Operands, then results: the larger half is whole.
            half = len(sizes) // 2
            return max(sum(sizes[:half]), sum(sizes[half:]))
        case "collective-permute-start":
            # Operand, result, and two numbers.
            return max(sizes)
    return sum(sizes)


def argument_bytes(one: Instruction, beside: Computation) -> list[int]:
    """Bytes of each argument."""
    return [sum(array_bytes(beside[name].type)) for name in one.operands if name in beside]


def executed(program: dict[str, Computation]) -> set[str]:
    """Computations whose instructions are operations of their own, not parts of one."""
    names = {next(reversed(program))}
    for instructions in program.values():
        for one in instructions.values():
            if one.opcode in ("while", "conditional", "call"):
                for called in CALLED.findall(one.attributes):
                    names.update(re.findall(r"[\w.-]+", called))
    return names


def computation_bytes(program: dict[str, Computation], name: str) -> int:
    """Bytes that the operations of a computation read and write; of what they slice, the slices alone."""
    total, instructions = 0, program[name]
    for one in instructions.values():
        if one.opcode in FREE or one.opcode.endswith(("-start", "-done", "-update")):
            continue
        if one.opcode == "fusion":
            total += fusion_bytes(one, instructions, program[one.called("calls")])
        elif one.opcode in SLICES:
            total += 2 * sum(array_bytes(one.type))
        elif one.opcode == UPDATE:
            total += 2 * argument_bytes(one, instructions)[1]
        else:
            total += sum(array_bytes(one.type)) + sum(argument_bytes(one, instructions))
    return total


def fusion_bytes(fusion: Instruction, beside: Computation, inside: Computation) -> int:
    """`computation_bytes` of one fusion, a single operation."""
    users = defaultdict(list)
    for one in inside.values():
        for operand in one.operands:
            users[operand].append(one)
    numbers = {int(one.arguments): name for name, one in inside.items() if one.opcode == "parameter"}
    total = 0
    for number, size in enumerate(argument_bytes(fusion, beside)):
        name = numbers.get(number)
        used = users[name]
        if used and all(one.opcode in SLICES for one in used):
            total += sum(sum(array_bytes(one.type)) for one in used)
        elif not used or any(one.opcode != UPDATE or one.operands[0] != name for one in used):
            total += size
    root = next(one for one in inside.values() if one.is_root)
    return total + (
        argument_bytes(root, inside)[1] if root.opcode == UPDATE else sum(array_bytes(fusion.type))
    )
