"""The programs of a run, compiled for a TPU slice on a machine without one: by libtpu's XLA, ahead of time."""

import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from flaxnmt.errors import ConfigError
from flaxnmt.sharding import use_mesh
from tpu.hlo import Collective, summary
from tpu.work import Call, Work, bytes_of

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # libtpu asks the metadata server of a TPU machine who it is; there is none.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_LIBRARY_LOG_LEVEL": "3",
    # Nobody holds a TPU here, so that several plans may be made at once.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclass(frozen=True)
class Program:
    """What the compiler says of a program, in bytes on one device.

    Attributes:
      arguments: parameters, optimizer, batch, and gradients where several batches make an update.
      parameters: of these the parameters.
      temporaries: activations and everything else that lives for a call.
      outputs: results that do not lie where arguments lay.
      code: the program itself.
      collectives: by kind.
      touched: bytes that operations read and write: as XLA counts them, times what loops repeat, of which it counts one
        round.
      unknown: loops that do not say how often they go round; one round of each is counted.
      times: how often it is called in a step.
    """

    arguments: int
    parameters: int
    temporaries: int
    outputs: int
    code: int
    collectives: dict[str, Collective]
    touched: float
    unknown: int = 0
    times: int = 1

    @property
    def total(self) -> int:
        return self.arguments + self.temporaries + self.outputs + self.code


class DoesNotFit(ConfigError):
    """The compiler found no room in the memory of a device.

    Attributes:
      used: bytes that the program needs; 0 where the compiler does not say.
    """

    def __init__(self, message: str, used: int = 0):
        super().__init__(message)
        self.used = used


def prepare_environment() -> None:
    """Lets libtpu compile here; before JAX starts.

    Raises:
      ConfigError: without libtpu.
    """
    os.environ.update(ENVIRONMENT)
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError("planning needs the TPU compiler: make tpu-install, or pip install 'jax[tpu]'")


def compile_work(work: Work, mesh: Mesh) -> list[Program]:
    """Compiles every call for the devices of the mesh.

    Raises:
      DoesNotFit: where the compiler finds no room.
      ConfigError: where it refuses the program.
    """
    with use_mesh(mesh, work.rules):
        return [compile_call(call, bytes_of(work.params)) for call in work.calls]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def compile_call(call: Call, parameters: int) -> Program:
    """`compile_work` of one call, with so many bytes of parameters on a device."""
    try:
        compiled = call.function.lower(*call.arguments).compile()
    # The second is JAX's word for a primitive that has no form on TPU: found while lowering, before the compiler.
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            said, used = _exhausted(str(error))
            raise DoesNotFit(said, used and used + call.beside) from error
        raise ConfigError(f"the TPU compiler refuses the program: {_first_line(error)}") from error
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    done = summary(compiled.as_text())
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Program(
        arguments=memory.argument_size_in_bytes + call.beside,
        parameters=parameters,
        temporaries=_temporaries(memory, outputs),
        outputs=outputs,
        code=memory.generated_code_size_in_bytes,
        collectives=done.collectives,
        touched=cost.get("bytes accessed", 0.0) * done.repeated,
        unknown=done.unknown,
        times=call.times,
    )


def _temporaries(memory: Any, outputs: int) -> int:
    """Bytes of all that is neither argument nor output.

    Of a TPU program `temp_size_in_bytes` counts what is free among its temporaries at their peak twice. Before jax 0.12
    there is nothing better; it is never less.
    """
    if hasattr(memory, "total_allocation_bytes"):
        return memory.total_allocation_bytes - memory.argument_size_in_bytes - outputs
    return memory.temp_size_in_bytes


def _exhausted(message: str) -> tuple[str, int]:
    """The compiler's words on memory in one line, and the bytes that it wanted."""
    size = r"([\d.]+)([KMGT])"
    words = (
        rf"Used {size} of {size} hbm",
        rf"required for HLO temporaries \({size}\) exceeds available HBM \({size}\)",
    )
    said = re.search(words[0], message) or re.search(words[1], message)
    if said is None:
        return message.splitlines()[0], 0
    scale = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return (
        f"needs {said[1]}{said[2]} of {said[3]}{said[4]} of memory on each device",
        int(float(said[1]) * scale[said[2]]),
    )
