"""Small sets with the features of GLUE and SQuAD."""

import labelled_sets
import numpy as np
import tensorflow_datasets as tfds

LABELS = ("entailment", "neutral", "contradiction")


class TinyInferences(tfds.core.GeneratorBasedBuilder):
    """The features of glue/mnli."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        texts = {name: tfds.features.Text() for name in ("premise", "hypothesis")}
        label = tfds.features.ClassLabel(names=LABELS)
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({**texts, "label": label})
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(9),
            "validation_matched": self._generate_examples(3),
            "test_matched": self._generate_examples(3, True),
        }

    def _generate_examples(self, count, hidden=False):
        for row in range(count):
            label = -1 if hidden else LABELS[row % 3]
            yield row, {"premise": f"premise {row}\ngoes on", "hypothesis": f"that {row}", "label": label}


class TinyQuestions(tfds.core.GeneratorBasedBuilder):
    """The features of squad/v2.0."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        texts = {name: tfds.features.Text() for name in ("title", "context", "question")}
        answers = {"text": tfds.features.Text(), "answer_start": np.int32}
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    **texts,
                    "id": tfds.features.Text(),
                    "is_impossible": np.bool_,
                    "answers": tfds.features.Sequence(answers),
                    "plausible_answers": tfds.features.Sequence(answers),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for each in labelled_sets.questions():
            answers = [{"text": answer.text, "answer_start": answer.start} for answer in each.answers]
            yield (
                each.id,
                {
                    "title": "a",
                    "id": each.id,
                    "context": each.context,
                    "question": each.question,
                    "is_impossible": not answers,
                    "answers": answers,
                    "plausible_answers": [{"text": "plausible", "answer_start": 0}],
                },
            )
