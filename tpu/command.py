"""Running other programs: argument lists only, the same list when it is only shown, and one line when it fails."""

import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from flaxnmt.errors import UserError
from tpu.names import hidden, scrubbed

CREDENTIALS, QUOTA, NOT_FOUND, EXISTS, UNPLACED = "credentials", "quota", "not found", "exists", "unplaced"
PERMISSION, CAPACITY, DISABLED, REFUSED, OTHER = "permission", "capacity", "disabled", "refused", "other"
NO_BUCKET = "no bucket"

TIME_LIMIT = 1800.0
"""Seconds for one command; to delete a large slice takes some minutes."""

UNPREPARED = "Could not prepare all"
"""What ssh of gcloud only warns of, where it runs the command on the machines that are left, if there are any."""

# What programs say, and what it means; the first that fits.
KINDS = (
    (
        CREDENTIALS,
        r"gcloud auth login|invalid_grant|reauthentication|problem refreshing|active account selected",
    ),
    (UNPLACED, r"is not properly specified|Failed to find attribute|property \[(compute/zone|core/project)"),
    (DISABLED, r"SERVICE_DISABLED|has not been used in project|API .*is not enabled|is disabled\. Enable it"),
    (
        QUOTA,
        r"quota (limit|metric)s? |Quota '[^']*' (exhausted|exceeded)|quota exceeded|exceed(s|ed)? .*quota",
    ),
    (CAPACITY, r"no more capacity|insufficient .*capacity|ZONE_RESOURCE_POOL_EXHAUSTED|RESOURCE_EXHAUSTED"),
    (PERMISSION, r"PERMISSION_DENIED|HTTPError 403|does not have .*(permission|access)|Permission .* denied"),
    (EXISTS, r"ALREADY_EXISTS|already exists"),
    (NO_BUCKET, r"bucket does not exist|gs://[^/\s]+/? not found"),
    (NOT_FOUND, r"NOT_FOUND|was not found|matched no objects|does not exist|NotFound"),
    (REFUSED, r"INVALID_ARGUMENT|Invalid value|unrecognized arguments|Bad Request|HTTPError 400"),
)
ADVICE = {
    CREDENTIALS: "the credentials are missing or have expired: gcloud auth login, then the same command again",
    UNPLACED: "say where: --project and --zone, or gcloud config set project and compute/zone",
    DISABLED: "the Cloud TPU API is off in this project: gcloud services enable tpu.googleapis.com",
    QUOTA: "the quota is used up: delete resources that are SUSPENDED or FAILED, which count too, or ask for more at "
    "https://console.cloud.google.com/iam-admin/quotas",
    CAPACITY: "the zone has no such TPU free now: leave the request in the queue, or try another --zone or --slice",
    PERMISSION: "the account may not do this: it needs the roles that tpu/README.md lists",
    EXISTS: "the name is taken: continue with run or watch, choose another --name, or delete it first",
    NO_BUCKET: "there is no such bucket: correct --bucket, or gcloud storage buckets create",
    NOT_FOUND: "there is none of this name: compare --name, --project and --zone with those of create",
    REFUSED: "Google Cloud does not accept this: compare --slice, --zone and --runtime-version with tpu/README.md",
}


class CommandFailed(UserError):
    """A program that could not be run, or failed; `kind` is what is to be done about it."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


def kind_of(said: str) -> str:
    """What the error of gcloud, kubectl or xpk is about."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, said, re.I)), OTHER)


def essence(said: str) -> str:
    """The line that says most: the first that is marked as an error, else the last; without tokens, and short."""
    lines = [line.strip() for line in scrubbed(said).splitlines() if line.strip()]
    marked = [line for line in lines if re.search(r"error", line, re.I)]
    line = (marked or lines[-1:] or ["it said nothing"])[0]
    return line if len(line) <= 300 else f"{line[:300]}..."


def failure(argv: Sequence[str], code: int, said: str) -> CommandFailed:
    """The one line for a command that failed."""
    kind = kind_of(said)
    what = f"{argv[0]} failed with exit code {code} ({essence(said)})"
    advice = ADVICE.get(kind, f"the command was: {shown(argv)}")
    return CommandFailed(kind, f"{advice}; {what}")


def shown(argv: Sequence[str]) -> str:
    """A command as a shell would take it, without secrets."""
    return shlex.join(map(hidden, argv))


@dataclass(frozen=True)
class Runner:
    """Runs commands, or only says which.

    Attributes:
      dry_run: print each command and file in place of running and writing it.
      say: takes lines for the user.
    """

    dry_run: bool = False
    say: Callable[[str], None] = print

    def run(self, argv: Sequence[str], missing_ok: bool = False, limit: float | None = None) -> str:
        """What the command wrote to its standard output; nothing in a dry run.

        Args:
          missing_ok: whether that there is nothing of the name is an answer too, an empty one.
          limit: seconds after which it is ended; half an hour if not given.

        Raises:
          CommandFailed: where it could not be run or failed.
        """
        if self.dry_run:
            self.say(shown(argv))
            return ""
        limit = TIME_LIMIT if limit is None else limit
        # Files and no pipes: those whom a program has started hold its pipes open when it is ended.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                code = self._start(argv, stdout=out, stderr=err, timeout=limit)
            except subprocess.TimeoutExpired:
                raise CommandFailed(
                    OTHER, f"{argv[0]} did not end within {limit:g} s; the command was: {shown(argv)}"
                ) from None
            said, complaint = (_whole(file) for file in (out, err))
        if code == 0 and UNPREPARED not in complaint:
            return said
        error = failure(argv, code, f"{said}\n{complaint}".strip())
        if missing_ok and error.kind == NOT_FOUND:
            return ""
        raise error

    def stream(self, argv: Sequence[str]) -> int:
        """Runs a command that writes to the terminal; its exit code."""
        if self.dry_run:
            self.say(shown(argv))
            return 0
        return self._start(argv)

    def write(self, path: Path, text: str, show: str | None = None) -> None:
        """Writes a file that a command reads; a dry run says `show` in its place, or the text, without secrets."""
        if self.dry_run:
            self.say(f"# {path}:")
            for line in (text if show is None else show).splitlines():
                self.say(f"#   {hidden(line)}")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # Values of variables may be secrets: for this user alone, from the first byte on.
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")

    def _start(self, argv: Sequence[str], **options) -> int:
        # Without input: a question of the program is answered by its end, and never waits unseen.
        try:
            return subprocess.run(list(argv), stdin=subprocess.DEVNULL, check=False, **options).returncode
        except FileNotFoundError:
            raise CommandFailed(
                OTHER, f"{argv[0]} is not installed: {INSTALL.get(argv[0], 'install it')}"
            ) from None


def _whole(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


INSTALL = {
    "gcloud": "https://cloud.google.com/sdk/docs/install",
    "xpk": "pip install xpk, in an environment of its own",
    "kubectl": "gcloud components install kubectl",
}
