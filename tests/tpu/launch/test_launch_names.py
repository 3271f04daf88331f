"""What is no name is refused before anything runs, and what is a word of the training stays one."""

import shlex

import pytest
from launching import CREATE, DATA, IMAGE

from flaxnmt.errors import ConfigError
from tpu import names, queued
from tpu.job import Job, Place, with_training
from tpu.slices import parse_slice

JOB = Job("wmt", Place(), parse_slice("v5e-16"), 1, "gs://b", "gs://b/r", IMAGE, (), {})

# What shells, lists of gcloud, YAML and file systems make something else of.
ODD = [
    "two words",
    " leading",
    "quote'",
    'quote"',
    "a;b",
    "a&&b",
    "a|b",
    "$(id)",
    "`id`",
    "${HOME}",
    "a\nb",
    "a\r",
    "a\tb",
    "a\0b",
    "a,b",
    "a=b",
    "*",
    "../up",
    "-flag",
    "--project=other",
    "ünï",
    "名前",
    "a\u2028b",
    "#",
    "",
]


def refused(call, *arguments) -> bool:
    try:
        call(*arguments)
    except ConfigError as error:
        assert str(error).count("\n") == 0
        return True
    return False


@pytest.mark.parametrize("odd", [*ODD, "Upper", "9digit", "under_score", "dot.ted", "ends-", "a" * 41])
def test_names_are_refused(odd):
    assert refused(names.check_name, "--name", odd)


@pytest.mark.parametrize("odd", ODD)
def test_buckets_images_places_and_accounts_are_refused(odd):
    if odd:
        assert refused(names.check_bucket, f"gs://{odd}") and refused(names.check_bucket, odd)
    if odd not in ("", "a=b"):
        assert refused(names.check_bucket, f"gs://my-bucket/{odd}")
    assert refused(names.check_image, odd) and refused(names.check_image, f"{IMAGE}{odd}x/")
    assert refused(names.check_image, f"us-docker.pkg.dev/{odd}:1")
    for check in (names.check_project, names.check_zone, names.check_account, names.check_duration):
        assert refused(check, odd)


@pytest.mark.parametrize(
    "bucket", ["my-bucket", "gs:/my-bucket", "s3://my-bucket", "gs://", "gs://ab", "gs://B", "gs://my-bucket//a", "gs://my-bucket/../a"]
)  # fmt: skip
def test_what_is_no_bucket(bucket):
    assert refused(names.check_bucket, bucket)


def test_what_is_a_bucket():
    assert names.check_bucket("gs://my-bucket/") == "gs://my-bucket"
    assert names.check_bucket("gs://my.bucket_1/team/Run_1.2") == "gs://my.bucket_1/team/Run_1.2"


@pytest.mark.parametrize(
    "image",
    ["flaxnmt:1", "us-docker.pkg.dev/p/flaxnmt", "us-docker.pkg.dev/p/flaxnmt:latest", f"{IMAGE}@sha256:12"],
)
def test_images_without_a_version_are_refused(image):
    assert refused(names.check_image, image)


def test_images_with_a_tag_or_a_digest_are_taken():
    digest = f"us-docker.pkg.dev/my-project/images/flaxnmt@sha256:{'0a' * 32}"
    assert names.check_image(digest) == digest and names.check_image(IMAGE) == IMAGE
    assert names.check_image("localhost.localdomain:5000/a:1")


def test_places_as_google_has_them():
    for zone in ("us-west4-a", "us-central1", "us-south1-ai1b", "northamerica-northeast1-c"):
        assert names.check_zone(zone) == zone
    assert names.check_project("example.com:my-project") and names.check_account(
        "me@p-1.iam.gserviceaccount.com"
    )


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "flag", ["--name", "--bucket", "--image", "--zone", "--project", "--service-account", "--cluster"]
)
def test_the_command_refuses_them_and_runs_nothing(flag, odd, cloud, command):
    code, _, err = command([*CREATE, f"{flag}={odd}", "--", *DATA])
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and cloud.calls == []


@pytest.mark.parametrize("odd", [odd for odd in ODD if names.CONTROL.search(odd)])
def test_words_of_more_than_one_line_are_refused(odd):
    with pytest.raises(ConfigError, match="must be one line"):
        with_training(JOB, "text_small", ["--train", odd])
    assert refused(names.check_variables, [f"NAME={odd}"])


@pytest.mark.parametrize("odd", [odd for odd in ODD if not names.CONTROL.search(odd)])
def test_other_words_stay_one_word_in_the_shell_of_a_machine(odd):
    command = with_training(JOB, "text_small", ["--train", odd]).command
    *_, sent, _ = queued.ssh("wmt", Place(), command)
    assert shlex.split(sent.removeprefix("--command=")) == list(command)


def test_flags_that_the_launcher_sets_are_refused():
    for word in ("--run", "--run=gs://x/y", "--processes", "--coordinator=a:1", "--expect-devices"):
        with pytest.raises(ConfigError, match="the launcher sets --run, --processes"):
            with_training(JOB, "text_small", [word])


@pytest.mark.parametrize("pair", ["A", "=b", "A B=c", "1A=b", "A-B=c", "TOKEN"])
def test_variables_are_refused_without_their_values(pair):
    with pytest.raises(ConfigError) as error:
        names.check_variables([f"{pair}"])
    assert "TOKEN" not in str(error.value)


def test_slugs_are_names_and_differ():
    texts = ["documents-sentence-seed1", "2-to-1", "2_to_1", "a:b", "A" * 80, "A" * 81, "", "ünï", "x-"]
    slugs = [names.slug(text) for text in texts]
    assert len(set(slugs)) == len(texts) and slugs[0] == texts[0]
    for slug in slugs:
        names.check_name("--name", slug)


@pytest.mark.parametrize(
    "word, shown",
    [
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("--env=WANDB_API_KEY=abc=d", "--env=WANDB_API_KEY=***"),
        ("DB_PASSWORD=", "DB_PASSWORD="),
        *(
            (f"{name}=abc", f"{name}=***")
            for name in ("WANDB_KEY", "DB_PWD", "MY_AUTH", "KEY", "MY_PASSPHRASE")
        ),
        ("KEYBOARD=abc", "KEYBOARD=abc"),
        ("COLOUR=red", "COLOUR=red"),
        ("MONKEY=abc", "MONKEY=abc"),
        ("--data.tokenizer.vocab-size=8000", "--data.tokenizer.vocab-size=8000"),
        ("Authorization: Bearer ya29.abc-d", "Authorization: Bearer ***"),
        ("https://x/?access_token=abc&b=1", "https://x/?access_token=***&b=1"),
    ],
)
def test_secrets_are_not_shown(word, shown):
    assert names.hidden(word) == shown


@pytest.mark.parametrize(
    "text, shown",
    [
        ("xpk: --env=WANDB_API_KEY=x9 --spot", "xpk: --env=WANDB_API_KEY=*** --spot"),
        ("ran HF_TOKEN='a b' COLOUR=red", "ran HF_TOKEN=*** COLOUR=red"),
        ('DB_PASSWORD="a b" MY_CREDENTIAL=c;d', "DB_PASSWORD=*** MY_CREDENTIAL=***"),
        (f"sh -c {shlex.quote('--env=HF_TOKEN=a b')} x", "sh -c '--env=HF_TOKEN=***' x"),
        (f"sh -c {shlex.quote(chr(39).join(['HF_TOKEN=a', 'b c']))} x", "sh -c 'HF_TOKEN=***' x"),
        (
            "--data.tokenizer=a --data.tokenizer.vocab-size=8",
            "--data.tokenizer=a --data.tokenizer.vocab-size=8",
        ),
    ],
)
def test_secrets_within_a_text_are_not_shown(text, shown):
    assert names.scrubbed(text) == shown
