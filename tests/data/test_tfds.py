import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow_datasets")

from flaxnmt.data.tfds import read
from flaxnmt.errors import DataError

HERE = Path(__file__).parent
LIST_SENTENCES = """
import sys
from flaxnmt.data.readers import read
for document in read(sys.argv[1]):
    print(document.id, *(sentence.target for sentence in document), sep="|")
assert "tensorflow" not in sys.modules
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The folder of three prepared sets, written in array_record by their builders."""
    folder = tmp_path_factory.mktemp("tfds")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        from translation_sets import builders

        for builder in (builders.TinyTalks, builders.KeyedTalks, builders.TinyPairs):
            builder(data_dir=folder, file_format="array_record").download_and_prepare()
        yield folder, builders


def by_talk(rows, source, target):
    talks = {}
    for talk, texts in rows:
        if source in texts and target in texts:
            talks.setdefault(talk, []).append((texts[source], texts[target]))
    return list(talks.items())


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en", "pt-br")])
@pytest.mark.parametrize("split", ["", ":train", ":test"])
def test_talks_come_back_in_order(prepared, source, target, split):
    folder, builders = prepared
    documents = read(f"tfds:tiny_talks/{source}_to_{target}{split}", folder)
    found = [(document.id, [pair[:2] for pair in document]) for document in documents]
    assert found == by_talk(builders.talk_rows(), source, target)


def test_the_set_on_disk_is_shuffled(prepared):
    folder, builders = prepared
    data = builders.TinyTalks(data_dir=folder, file_format="array_record").as_data_source("train")
    names = [example["talk_name"].decode() for example in data]
    changes = sum(a != b for a, b in zip(names, names[1:], strict=False))
    assert changes > len(names) / 2
    assert sorted(names) == [talk for talk, _ in builders.talk_rows()]


def test_order_that_cannot_be_put_back_is_refused(prepared):
    folder, _ = prepared
    with pytest.raises(DataError, match="order of its talks cannot be put back"):
        list(read("tfds:keyed_talks/de_to_en", folder))


def test_sentence_pairs(prepared):
    folder, _ = prepared
    documents = list(read("tfds:tiny_pairs/fr-en", folder))
    assert {len(document) for document in documents} == {1}
    pairs = {pair.source: pair.target for document in documents for pair in document}
    assert pairs == {f"Été n° {index}": f"summer no {index} second line" for index in range(60)}


def test_direction_and_slice(prepared):
    folder, _ = prepared
    reversed_pairs = [
        document.sentences[0] for document in read("tfds:tiny_pairs/fr-en/en_to_fr:train[:10]", folder)
    ]
    assert len(reversed_pairs) == 10
    assert all(pair.source.startswith("summer") and pair.target.startswith("Été") for pair in reversed_pairs)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tfds:tiny_talks", "needs a direction.*de, en, pt-br"),
        ("tfds:tiny_talks/de_to_fr", "has no de to fr"),
        ("tfds:tiny_talks/de_to_en:dev", "has no split dev; it has"),
        ("tfds:tiny_talks/de_to_en:train[:5]", "no whole talks"),
        ("tfds:tiny_pairs/fr-xx", "no such set or config"),
        ("tfds:no_such_set", "no such set or config"),
        ("tfds:a/b/c/d", "expected tfds:NAME"),
        ("tfds:ted_hrlr_translate/gl_to_en", "not prepared in .*download_and_prepare"),
        ("tfds:ted_multi_translate/de_to_en", "not prepared in .*download_and_prepare"),
        ("tfds:wmt14_translate/fr-en", "not prepared in .*download_and_prepare"),
    ],
)
def test_errors_are_one_line(prepared, name, message):
    with pytest.raises(DataError, match=message) as error:
        read(name, prepared[0])
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_prepared_files_are_read_without_their_builder_and_without_tensorflow(prepared):
    folder, builders = prepared
    command = [sys.executable, "-c", LIST_SENTENCES, "tfds:tiny_talks/de_to_en"]
    environment = os.environ | {"TFDS_DATA_DIR": str(folder)}
    run = subprocess.run(
        command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    expected = by_talk(builders.talk_rows(), "de", "en")
    assert run.stdout.splitlines() == [
        "|".join([talk, *(pair[1] for pair in pairs)]) for talk, pairs in expected
    ]
