"""What may be a name, a bucket, an image or a word of a command, and what is never shown.

Launchers hand these to other programs, some of them through a shell on another machine. Names are held to the
narrowest rule of those that read them, so that nothing in them needs quoting; words of the training's command may
hold anything but control characters, and stay one word each wherever they are quoted.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence

from flaxnmt.errors import ConfigError

LONGEST_NAME = 40
"""Of xpk, the shortest of all: Cloud TPU and Kubernetes allow 63 and add to the end."""

NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
BUCKET = re.compile(r"[a-z0-9][-a-z0-9_.]{1,61}[a-z0-9]")
FOLDER = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.=]*")
PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
ZONE = re.compile(r"[a-z]+-[a-z]+\d+(-(ai\d+)?[a-z])?")
HOST = re.compile(r"[a-z0-9][-a-z0-9.]*\.[a-z]+(:\d+)?")
PART = re.compile(r"[a-z0-9]+([._-]+[a-z0-9]+)*")
TAG = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
ACCOUNT = re.compile(r"[a-z0-9][-a-z0-9.]*@[a-z0-9][-a-z0-9.]*\.[a-z]+")
DURATION = re.compile(r"[1-9]\d{0,5}[smhd]")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

SECRET = re.compile(
    r"(?i)token|secret|passw|passphrase|pwd|credential|apikey|privatekey|accesskey|(^|_)(key|auth|pat)(_|$)"
)
HIDDEN = "***"
# NAME=VALUE within a text, as shells have it: bare or quoted from the value on...
ASSIGNED = re.compile(r"""(?<![\w.-])([A-Za-z_]\w*)=((?:'[^']*'|"[^"]*"|[^\s'"&])+)""")
# ...or the whole word quoted, with the quotation marks that shlex puts for one.
QUOTED = re.compile(r"""(?<=')((?:--env=)?[A-Za-z_]\w*)=([^']*(?:'"'"'[^']*)*)(?=')""")
# Access tokens of Google, and what stands after a word that announces a secret.
SPOKEN_SECRETS = (
    re.compile(r"ya29\.[\w.-]+"),
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]+"),
    re.compile(r"(?i)(?<=token=)[^\s&'\"]+|(?<=password=)[^\s&'\"]+|(?<=secret=)[^\s&'\"]+"),
)


def _check(pattern: re.Pattern, what: str, value: str, rule: str) -> str:
    if not pattern.fullmatch(value):
        raise ConfigError(f"{what} {value!r}: {rule}")
    return value


def check_name(what: str, value: str) -> str:
    """The name of a resource, a workload or a cluster.

    Raises:
      ConfigError: for what Cloud TPU, Kubernetes or xpk would refuse.
    """
    rule = f"a name has lower-case letters, digits and hyphens, starts with a letter, and is at most {LONGEST_NAME} long"
    _check(NAME, what, value, rule)
    if len(value) > LONGEST_NAME:
        raise ConfigError(f"{what} {value!r} has {len(value)} characters: {rule}")
    return value


def slug(text: str) -> str:
    """A name like `text`; with a hash of it where something had to be changed, so that two of them differ.

    >>> slug("documents-sentence-seed1"), slug("2-to-1")
    ('documents-sentence-seed1', 'n2-to-1-82df5f')
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if name[:1].isalpha() else f"n{name}"
    if name == text and len(name) <= LONGEST_NAME:
        return name
    mark = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{name[: LONGEST_NAME - 7].rstrip('-')}-{mark}"


def check_bucket(value: str, what: str = "--bucket") -> str:
    """A bucket, or a folder in one, as gs://BUCKET/FOLDER without a slash at the end.

    Raises:
      ConfigError: for anything else.
    """
    rule = "give gs://BUCKET or gs://BUCKET/FOLDER, of letters, digits, hyphens, dots, = and _"
    scheme, _, rest = value.partition("://")
    bucket, *folders = rest.removesuffix("/").split("/")
    if scheme != "gs" or ".." in value:
        raise ConfigError(f"{what} {value!r}: {rule}")
    _check(BUCKET, what, bucket, rule)
    for folder in folders:
        _check(FOLDER, what, folder, rule)
    return "/".join([f"gs://{bucket}", *folders])


def check_project(value: str) -> str:
    """The ID of a Google Cloud project."""
    return _check(PROJECT, "--project", value, "give the project's ID, such as my-project-123")


def check_zone(value: str) -> str:
    """A zone, or for clusters a region."""
    return _check(
        ZONE, "--zone", value, "give a zone such as us-west4-a; gcloud compute tpus locations list has all"
    )


def check_account(value: str) -> str:
    """The address of a service account."""
    return _check(
        ACCOUNT, "--service-account", value, "give its address, NAME@PROJECT.iam.gserviceaccount.com"
    )


def check_duration(value: str) -> str:
    """A time as gcloud writes it."""
    return _check(DURATION, "--valid-until-duration", value, "give a number and s, m, h or d, such as 6h")


def check_image(value: str) -> str:
    """A container image in a registry, of one version: with a tag that is not `latest`, or a digest.

    Raises:
      ConfigError: for anything else; a run that is continued must be continued by the same program.
    """
    rule = (
        "give HOST/PATH:TAG or HOST/PATH@sha256:DIGEST, such as us-docker.pkg.dev/my-project/images/flaxnmt:1"
    )
    name, _, digest = value.partition("@")
    host, _, rest = name.partition("/")
    path, _, tag = rest.partition(":")
    parts = path.split("/")
    correct = bool(HOST.fullmatch(host)) and all(PART.fullmatch(part) for part in parts)
    if not correct or (tag and not TAG.fullmatch(tag)) or ("@" in value and not DIGEST.fullmatch(digest)):
        raise ConfigError(f"--image {value!r}: {rule}")
    if not digest and tag in ("", "latest"):
        raise ConfigError(f"--image {value}: what it names may change while the run is continued; {rule}")
    return value


def check_words(words: Iterable[str]) -> list[str]:
    """Words of a command line: anything in one line.

    Raises:
      ConfigError: for a line break or another control character, which would end a line of the metadata.
    """
    words = list(words)
    for word in words:
        if CONTROL.search(word):
            raise ConfigError(
                f"{word!r}: an argument of the training must be one line without control characters"
            )
    return words


def check_variables(pairs: Sequence[str]) -> dict[str, str]:
    """Environment variables of NAME=VALUE each.

    Raises:
      ConfigError: for what is none; the value is not repeated.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            raise ConfigError("--env: give NAME=VALUE, with a name of letters, digits and _")
        if CONTROL.search(value):
            raise ConfigError(f"--env {name}: the value must be one line without control characters")
        found[name] = value
    return found


def hidden(word: str) -> str:
    """A word of a command line, or a line of a file, as it may be shown: no values of variables that sound secret."""
    name, equals, value = word.removeprefix("--env=").partition("=")
    if equals and value and VARIABLE.fullmatch(name) and SECRET.search(name):
        return word.removesuffix(value) + HIDDEN
    return scrubbed(word)


def scrubbed(text: str) -> str:
    """What another program said, without tokens, and without values of variables that sound secret."""
    for pattern in SPOKEN_SECRETS:
        text = pattern.sub(HIDDEN, text)
    for pattern in (QUOTED, ASSIGNED):
        text = pattern.sub(_without_value, text)
    return text


def _without_value(found: re.Match) -> str:
    return f"{found[1]}={HIDDEN}" if SECRET.search(found[1]) else found[0]
