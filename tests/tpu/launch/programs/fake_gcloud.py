"""A stand-in for gcloud that knows queued resources and objects of a bucket, and nothing else.

Flags are those of `gcloud compute tpus queued-resources ... --help` and `gcloud storage ... --help`, SDK 528; whatever
is not among them fails as argparse of gcloud does. Texts have the form of the SDK's own: errors of credentials from
googlecloudsdk/core/credentials/exceptions.py, of missing objects from command_lib/storage/name_expansion.py, of the
API as its client prints them (`ERROR: (gcloud.COMMAND) STATUS: MESSAGE`), resources as QueuedResource of the Cloud TPU
API v2 (https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources), quotas and capacity
as https://cloud.google.com/tpu/docs/troubleshooting/trouble-tpu has them.

State lies in $FAKE: resources.json, objects/, and `plan.json`, which says what becomes of resources: {"states": [...],
"fail": {"create": "quota", ...}, "codes": [[...], ...]}. Calls are logged in calls.jsonl.
"""

import json
import os
import sys
from fnmatch import fnmatch
from pathlib import Path

FAKE = Path(os.environ["FAKE"])
TPUS = ["compute", "tpus", "queued-resources"]
COMMON = {"--project", "--zone", "--quiet", "--format"}
KNOWN = {
    "create": COMMON
    | {
        "--node-id",
        "--node-count",
        "--node-prefix",
        "--accelerator-type",
        "--runtime-version",
        "--spot",
        "--reserved",
        "--internal-ips",
        "--service-account",
        "--scopes",
        "--valid-until-duration",
        "--metadata",
        "--metadata-from-file",
    },
    "describe": COMMON,
    "list": COMMON,
    "delete": COMMON | {"--force"},
    "ssh": COMMON | {"--node", "--worker", "--command"},
}
SWITCHES = {"--quiet", "--spot", "--reserved", "--internal-ips", "--force"}
ERRORS = {
    "credentials": "There was a problem refreshing your current auth tokens: ('invalid_grant: Bad Request', {{'error': "
    "'invalid_grant'}})\nPlease run:\n\n  $ gcloud auth login\n\nto obtain new credentials.",
    "account": "You do not currently have an active account selected.\nPlease run:\n\n  $ gcloud auth login\n\nto obtain "
    "new credentials.",
    "quota": "RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in "
    "zone us-west4-a.",
    "permission": "PERMISSION_DENIED: Permission 'tpu.queuedResources.{verb}' denied on "
    "'projects/my-project/locations/us-west4-a/queuedResources/{name}'",
    "disabled": "PERMISSION_DENIED: Cloud TPU API has not been used in project 123456 before or it is disabled.",
    "not found": "NOT_FOUND: Resource 'projects/my-project/locations/us-west4-a/queuedResources/{name}' was not found",
    "exists": "ALREADY_EXISTS: Resource 'projects/my-project/locations/us-west4-a/queuedResources/{name}' already exists",
    "runtime": "INVALID_ARGUMENT: The runtime version tpu-ubuntu2204-base is not supported for accelerator v5litepod-16.",
    "capacity": 'RESOURCE_EXHAUSTED: There is no more capacity in the zone "us-west4-a"',
    "no bucket": "HTTPError 404: The specified bucket does not exist.",
    "network": "Could not reach the server: [Errno -3] Temporary failure in name resolution",
    "leak": "request failed, Authorization: Bearer ya29.a0AfH6SMBx-secret",
}
FAILED = {
    "capacity": 'There is no more capacity in the zone "us-west4-a"; you can try in another zone where Cloud TPU Nodes '
    "are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x1b65fc31a3a5d2fb]",
    "quota": "Quota limit 'TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0.",
}


def stop(group: list[str], text: str, code: int = 1):
    print(f"ERROR: (gcloud.{'.'.join(group)}) {text}", file=sys.stderr)
    sys.exit(code)


def flags(group: list[str], words: list[str], known: set[str]) -> tuple[list[str], dict[str, str]]:
    names, found = [], {}
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            names.append(word)
        elif name not in known or bool(equals) == (name in SWITCHES):
            stop(group, f"unrecognized arguments: {word}", 2)
        else:
            found[name] = value
    return names, found


def load(name: str, default):
    path = FAKE / name
    return json.loads(path.read_text()) if path.exists() else default


def save(name: str, value) -> None:
    (FAKE / name).write_text(json.dumps(value))


def pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split(",")) if text else {}


def fail_if_planned(verb: str, group: list[str], name: str) -> None:
    plan = load("plan.json", {})
    kinds = plan.get("fail", {}).get(verb, [])
    if kinds:
        kind = kinds.pop(0)
        save("plan.json", plan)
        if kind:
            stop(group, ERRORS[kind].format(verb=verb, name=name))


def resource_json(name: str, resource: dict) -> dict:
    given = resource["flags"]
    node = {
        "acceleratorType": given["--accelerator-type"],
        "runtimeVersion": given["--runtime-version"],
        "metadata": resource["metadata"],
    }
    spec = {"node": node, "parent": "projects/123456/locations/us-west4-a"}
    if "--node-count" in given:
        spec["multisliceParams"] = {
            "nodeCount": int(given["--node-count"]),
            "nodeIdPrefix": given["--node-prefix"],
        }
    else:
        spec["nodeId"] = given["--node-id"]
    state, _, why = resource["state"].partition(":")
    described = {"state": state, "stateInitiator": "SERVICE"}
    if why:
        described["failedData"] = {"error": {"code": 8, "message": FAILED[why]}}
    return {
        "name": f"projects/my-project/locations/us-west4-a/queuedResources/{name}",
        "state": described,
        "tpu": {"nodeSpec": [spec]},
    } | ({"spot": {}} if "--spot" in given else {})


def queued_resources(verb: str, words: list[str]) -> None:
    group = [*TPUS, verb]
    if verb not in KNOWN:
        stop(["compute", "tpus", "queued-resources"], f"Invalid choice: '{verb}'.", 2)
    names, given = flags(group, words, KNOWN[verb])
    if len(names) != (verb != "list"):
        stop(group, f"unrecognized arguments: {' '.join(names[1:])}", 2)
    name = names[0] if names else ""
    fail_if_planned(verb, group, name)
    resources = load("resources.json", {})
    if verb == "list":
        print(json.dumps([resource_json(key, value) for key, value in resources.items()]))
        return
    if verb == "create":
        if name in resources:
            stop(group, ERRORS["exists"].format(name=name))
        metadata = pairs(given.get("--metadata", ""))
        metadata |= {
            key: Path(path).read_text() for key, path in pairs(given.get("--metadata-from-file", "")).items()
        }
        resources[name] = {"flags": given, "metadata": metadata, "state": "ACCEPTED"}
        save("resources.json", resources)
        print(f"Create request issued for: [{name}]", file=sys.stderr)
        return
    if name not in resources:
        stop(group, ERRORS["not found"].format(name=name))
    if verb == "delete":
        if "--force" not in given:
            stop(group, "FAILED_PRECONDITION: the queued resource has nodes")
        del resources[name]
        save("resources.json", resources)
        print(f"Deleted queued resource [{name}].", file=sys.stderr)
    elif verb == "describe":
        plan = load("plan.json", {})
        if plan.get("states"):
            event = plan["states"].pop(0)
            save("plan.json", plan)
            if event["state"] == "GONE":
                del resources[name]
                save("resources.json", resources)
                stop(group, ERRORS["not found"].format(name=name))
            resources[name]["state"] = event["state"]
            save("resources.json", resources)
            folder = resources[name]["metadata"]["flaxnmt-state"].removeprefix("gs://")
            for worker, code in event.get("codes", {}).items():
                path = FAKE / "objects" / folder / "exit" / worker
                path.parent.mkdir(parents=True, exist_ok=True)
                # A machine says once how it ended.
                if not path.exists() or path.read_text().split()[2] != str(code):
                    path.write_text(f"{name} {worker} {code} {load('now.json', 0)}\n")
        print(json.dumps(resource_json(name, resources[name])))
    elif verb == "ssh":
        if "--command" not in given:
            stop(group, "argument --command: Must be specified.", 2)
        if resources[name]["state"] != "ACTIVE":
            # As surface/compute/tpus/queued_resources/ssh.py, for which machines that are not ready are no failure.
            print("Could not prepare all 1 nodes, attempting to ssh into the rest.", file=sys.stderr)
            return
        print(f"ran on worker {given['--worker']} of node {given['--node']}")


def storage(verb: str, words: list[str]) -> None:
    group = ["storage", verb]
    names, _ = flags(group, words, {"--quiet"})
    fail_if_planned(f"storage {verb}", group, "")
    if verb == "cp":
        source, target = names
        path = FAKE / "objects" / target.removeprefix("gs://")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes())
        return
    if verb not in ("cat", "ls", "rm"):
        stop(["storage"], f"Invalid choice: '{verb}'.", 2)
    (pattern,) = names
    root = FAKE / "objects"
    objects = [path for path in sorted(root.rglob("*")) if path.is_file()]
    found = [path for path in objects if fnmatch(f"gs://{path.relative_to(root)}", pattern)]
    if not found:
        stop(group, f"The following URLs matched no objects or files:\n{pattern}")
    for path in found:
        if verb == "cat":
            print(path.read_text(), end="")
        elif verb == "ls":
            print(f"gs://{path.relative_to(root)}")
        else:
            path.unlink()


def main(argv: list[str]) -> None:
    with (FAKE / "calls.jsonl").open("a") as file:
        file.write(json.dumps(["gcloud", *argv]) + "\n")
    if argv[:3] == TPUS and len(argv) > 3:
        queued_resources(argv[3], argv[4:])
    elif argv[:1] == ["storage"] and len(argv) > 1:
        storage(argv[1], argv[2:])
    elif argv[:2] == ["auth", "configure-docker"] and argv[3:] == ["--quiet"]:
        fail_if_planned("configure-docker", ["auth", "configure-docker"], "")
    else:
        stop([], f"Invalid choice: {argv}", 2)


main(sys.argv[1:])
