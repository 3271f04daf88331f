"""A stand-in for xpk that knows `workload create|list|delete`, and nothing else.

Flags are those of src/xpk/parser/workload.py and common.py of https://github.com/AI-Hypercomputer/xpk (2026-06), the
rule of names is its validators.py, the table of `list` has the form that src/xpk/core/workload.py prints, messages of
Kueue and JobSet are those in its tests. State lies in $FAKE: workloads.json, plan.json; calls in calls.jsonl.
"""

import json
import os
import re
import sys
from pathlib import Path

FAKE = Path(os.environ["FAKE"])
COMMON = {"--project", "--zone", "--cluster"}
# Of src/xpk/core/system_characteristics.py, by the number in the name; other shapes are written in full.
TYPES = {
    "v4": range(8, 4097),
    "v5p": range(8, 12289),
    "v5litepod": (8, 16, 32, 64, 128, 256),
    "v6e": (1, 4, 8, 16, 32, 64, 128, 256),
    "tpu7x": range(2, 18433),
}
KNOWN = {
    "create": COMMON
    | {
        "--workload",
        "--tpu-type",
        "--num-slices",
        "--docker-image",
        "--max-restarts",
        "--restart-on-exit-codes",
        "--termination-grace-period-seconds",
        "--no-use-parallel-containers",
        "--spot",
        "--env",
        "--command",
    },
    "list": COMMON | {"--filter-by-job"},
    "delete": COMMON | {"--workload", "--force"},
}
SWITCHES = {"--no-use-parallel-containers", "--spot", "--force"}
TITLES = (
    "Jobset Name",
    "Created Time",
    "Priority",
    "TPU/GPU VMs Needed",
    "TPU/GPU VMs Running/Ran",
    "TPU/GPU VMs Done",
    "Status",
    "Status Message",
    "Status Time",
)


def say(text: str) -> None:
    print(f"[XPK] {text}")


def stop(text: str, code: int = 2) -> None:
    print(f"xpk workload: error: {text}", file=sys.stderr)
    sys.exit(code)


def load(name: str, default):
    path = FAKE / name
    return json.loads(path.read_text()) if path.exists() else default


def show(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [TITLES, *rows]) for column in range(len(TITLES))]
    for row in [TITLES, *rows]:
        print("   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)))


def main(argv: list[str]) -> None:
    with (FAKE / "calls.jsonl").open("a") as file:
        file.write(json.dumps(["xpk", *argv]) + "\n")
    if argv[:1] != ["workload"] or len(argv) < 2 or argv[1] not in KNOWN:
        stop(f"invalid choice: {argv}")
    verb, given = argv[1], {}
    for word in argv[2:]:
        name, equals, value = word.partition("=")
        if name not in KNOWN[verb] or bool(equals) == (name in SWITCHES):
            stop(f"unrecognized arguments: {word}")
        if name == "--env" and not re.match(r"[a-zA-Z_][a-zA-Z0-9_]*=", value):
            stop("Invalid environment variable, format must be `--env VARIABLE=value`")
        given.setdefault(name, value)
    for name in ("--cluster", "--workload"):
        value = given.get(name, "")
        if name in KNOWN[verb] and (
            not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", value) or len(value) > 40
        ):
            stop(
                f"argument {name}: Name must be less than 40 characters and match the pattern; is currently {value}"
            )
    if verb == "create":
        kind, _, size = given["--tpu-type"].partition("-")
        if size.isdigit() and int(size) not in TYPES.get(kind, ()):
            stop(f"argument --tpu-type: {given['--tpu-type']} is not a known type")
    plan = load("plan.json", {})
    if plan.get("fail", {}).get(verb):
        say("Task: `Find cluster region or zone` terminated with code `1`")
        print(plan["fail"][verb].pop(0), file=sys.stderr)
        (FAKE / "plan.json").write_text(json.dumps(plan))
        sys.exit(1)
    say("Starting xpk v1.0.0")
    workloads = load("workloads.json", {})
    if verb == "create":
        if given["--workload"] in workloads:
            # It would ask whether to replace it, and nobody is there to answer.
            stop(f"{given['--workload']} already exists, do you want to overwrite it?", 1)
        workloads[given["--workload"]] = ["Admitted", "The workload is admitted"]
    elif verb == "delete":
        if workloads.pop(given["--workload"], None) is None:
            stop(
                f'Error from server (NotFound): jobsets.jobset.x-k8s.io "{given["--workload"]}" not found', 1
            )
    else:
        if plan.get("states"):
            name, *state = plan["states"].pop(0)
            workloads[name] = state
            (FAKE / "plan.json").write_text(json.dumps(plan))
        say("Workload List Output:")
        some = ["2026-01-01T00:00:00Z", "medium", "4", "4", "<none>"]
        chosen = {name: state for name, state in workloads.items() if given["--filter-by-job"] in name}
        show([[name, *some, *state, "<none>"] for name, state in chosen.items()])
    (FAKE / "workloads.json").write_text(json.dumps(workloads))
    say("Exiting XPK cleanly")


main(sys.argv[1:])
