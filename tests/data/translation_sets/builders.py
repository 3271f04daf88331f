"""Small sets with the features of the public translation sets; TFDS shuffles them when it writes."""

import tensorflow_datasets as tfds

TALKS = 7
LANGUAGES = ("de", "en", "pt-br")


def talk_rows() -> list[tuple[str, dict[str, str]]]:
    """(talk, translations) in order: talks of 20 to 44 sentences, Portuguese missing in every fifth row."""
    rows = []
    for talk in range(TALKS):
        for sentence in range(20 + 4 * talk):
            texts = {"de": f"Grüße {talk} Satz {sentence}", "en": f"greetings {talk} sentence {sentence}"}
            if len(rows) % 5:
                texts["pt-br"] = f"saudações {talk} frase {sentence}"
            rows.append((f"talk_{talk}", texts))
    return rows


class TinyTalks(tfds.core.GeneratorBasedBuilder):
    """The features of ted_multi_translate."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "translations": tfds.features.TranslationVariableLanguages(languages=LANGUAGES),
                    "talk_name": tfds.features.Text(),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(), "test": self._generate_examples()}

    def _generate_examples(self):
        for index, (talk, texts) in enumerate(talk_rows()):
            yield index, {"translations": texts, "talk_name": talk}


class KeyedTalks(TinyTalks):
    """Talks whose keys are not 0, 1, 2, ...: their order is lost on disk."""

    def _generate_examples(self):
        for index, (talk, texts) in enumerate(talk_rows()):
            yield f"row/{index}", {"translations": texts, "talk_name": talk}


class PairConfig(tfds.core.BuilderConfig):
    """A language pair."""

    def __init__(self, pair: tuple[str, str]):
        super().__init__(name="-".join(pair), version="1.0.0", description="a pair")
        self.pair = pair


class TinyPairs(tfds.core.GeneratorBasedBuilder):
    """The features of wmt14_translate and ted_hrlr_translate."""

    BUILDER_CONFIGS = [PairConfig(("fr", "en"))]

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.Translation(languages=self.builder_config.pair),
            supervised_keys=self.builder_config.pair,
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for index in range(60):
            yield f"part/{index}", {"fr": f"Été n° {index}", "en": f"summer no {index}\nsecond line"}
