"""Plans that stand in experiments/results/tpu_plans.md: each is compiled, in a process of its own.

python -m tpu.plans [--only PATTERN]
"""

import fnmatch
import json
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments.tables import RESULTS
from flaxnmt.commands import MISTAKE, guarded, parsed
from flaxnmt.errors import ConfigError, RunError
from tpu.slices import GIB

BF16 = "--model.compute-dtype bfloat16"
DOCUMENTS = (
    "discourse_document --slice v5p-16 --sentences 128 --source-length 32 --data.batch-tokens 32768 "
    f"--data.rows-multiple 8 --model.d-model 512 --model.encoder.attention.heads 8 --model.decoder.attention.heads 8 {BF16}"
)
PLANS = {
    "Transformer big, the paper's 32 chips": "transformer_big --slice v3-64",
    "budgets, Transformer big": "cct_wmt14_en_fr --slice v3-64 --model.scan --model.remat",
    "Transformer base": f"transformer_base --slice v5e-16 {BF16}",
    "Transformer base, FSDP": f"transformer_base --slice v5e-16 {BF16} --mesh.data 1 --mesh.fsdp 16",
    "Transformer base, scanned": f"transformer_base --slice v5e-16 {BF16} --model.scan",
    "Transformer base, scanned, FSDP": (
        f"transformer_base --slice v5e-16 {BF16} --model.scan --mesh.data 1 --mesh.fsdp 16"
    ),
    "BERT base": "bert_base --slice v5e-16 --model.scan --model.remat",
    "BERT large": "bert_large --slice v3-128 --model.scan --model.remat",
    "budgets, BERT large": "cct_bert_large --slice v3-128 --model.scan --model.remat",
    "quintuple encoder": (
        f"encoders_iwslt15_en_vi --slice v5e-16 --model.encoder.branches quintuple {BF16} --data.batch-tokens 65536 "
        "--data.rows-multiple 64"
    ),
    "documents, dispatched": f"{DOCUMENTS} --model.document.dispatched True",
    "documents, all words": f"{DOCUMENTS} --model.document.layers sentence document",
    "documents, all words, splash kernel": (
        f"{DOCUMENTS} --model.document.layers sentence document --model.document.kernel splash"
    ),
    "beam search": f"transformer_base --slice v5e-4 --decode {BF16}",
    "two slices": f"transformer_base --slice v5e-16 --slices 2 {BF16} --data.batch-tokens 131072 --data.rows-multiple 128",
    "1024 chips": (
        f"transformer_big --slice v5p-2048 {BF16} --data.batch-tokens 1048576 --data.rows-multiple 1024 --model.scan"
    ),
}


@dataclass(frozen=True)
class Arguments:
    only: str = "*"
    """Plans whose name matches."""
    results: Path = RESULTS
    debug: bool = False
    """Show tracebacks."""


def compiled(command: str) -> dict:
    """What `tpu.plan` finds.

    Raises:
      RunError: where it fails.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "row.json"
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tpu.plan", *shlex.split(command), "--json", str(path)],
            capture_output=True,
            text=True,
        )
        if not path.exists():
            killed = (
                f"killed by signal {-done.returncode}, as where memory is out; --model.scan compiles in less"
            )
            last = (done.stderr.strip().splitlines() or [killed])[-1]
            raise RunError(f"python -m tpu.plan {command}: {last}")
        row = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        return row | {"command": command, "compile_seconds": time.monotonic() - began}


def lines(name: str, row: dict) -> str:
    """The row of the table."""
    mesh = " x ".join(str(size) for size in row["mesh"].values())
    where = f"{row['slices']} x {row['slice']}" if row["slices"] > 1 else row["slice"]
    common = f"| {name} | {where} | {row['chips']} | {mesh} | {row['source']}, {row['target']} |"
    if not row["fits"]:
        return f"{common} no: {row['used'] / GIB:.1f} of {row['room'] / GIB:.0f} | | | | | {row['compile_seconds']:.0f} |"
    collectives = ", ".join(
        f"{one['count']} {kind} ({one['bytes'] / 2**20:.0f} MiB)" for kind, one in row["collectives"].items()
    )
    return (
        f"{common} {row['used'] / GIB:.2f} of {row['room'] / GIB:.0f} | {row['temporaries'] / GIB:.2f} | "
        f"{collectives or 'none'} | {row['flops'] / 1e9:.0f} | {1e3 * row['seconds']:.1f} ({row['longest']}) | "
        f"{row['compile_seconds']:.0f} |"
    )


HEADER = (
    "| plan | slice | chips | data x fsdp x model | sources, targets | GiB a device | temporaries | collectives | "
    "GFLOP a chip | estimated ms (longest pole) | seconds to plan |"
)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv

    def run() -> int:
        arguments = parsed(lambda: tyro.cli(Arguments, args=argv, description=__doc__), argv)
        chosen = {name: text for name, text in PLANS.items() if fnmatch.fnmatch(name, arguments.only)}
        if not chosen:
            raise ConfigError(f"no plan matches --only {arguments.only!r}; there are {', '.join(PLANS)}")
        path = arguments.results / "tpu_plans.jsonl"
        found = {row["name"]: row for row in _rows(path)}
        failed = 0
        for name, command in chosen.items():
            try:
                found[name] = {"name": name, **compiled(command)}
            except RunError as error:
                # The others are not worse for it.
                print(f"error: {error}", file=sys.stderr, flush=True)
                failed = MISTAKE
                continue
            print(lines(name, found[name]), flush=True)
            rows = [found[name] for name in PLANS if name in found]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            (arguments.results / "tpu_plans.md").write_text(page(rows), encoding="utf-8")
        return failed

    return guarded(run, debug="--debug" in argv)


def _rows(path: Path) -> list[dict]:
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    )


def page(rows: list[dict]) -> str:
    """All of the table, and the commands."""
    columns = "| " + " | ".join(["---"] * (HEADER.count("|") - 1)) + " |"
    body = "\n".join(lines(row["name"], row) for row in rows)
    commands = "\n".join(f"    python -m tpu.plan {row['command']}" for row in rows)
    return (
        "# Plans for TPU slices\n\nCompiled by XLA for TPU on two CPU cores without a TPU (`make tpu-plan`). Estimates are a "
        "roofline: products at half of the peak, HBM, collectives, whichever is longest; nobody has measured them on a "
        f"pod.\n\n{HEADER}\n{columns}\n{body}\n\nThe commands:\n\n{commands}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
