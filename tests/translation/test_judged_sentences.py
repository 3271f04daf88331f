"""A sentence that is judged in its document: as in the whole document, though nothing else of it is decoded."""

import numpy as np
import pytest
from small_models import float32, random_params, small_model

from flaxnmt.config import DecodingConfig, TokenizerConfig
from flaxnmt.data.boundaries import TRUE, Boundaries
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.vocabularies import build_tokenizers
from flaxnmt.models.config import BudgetConfig, DocumentConfig
from flaxnmt.translation.documents import DocumentTranslator

WORDS = "one two three four five six".split()
TEXTS = [
    [["one two", "three"], ["four five six", "one"]],
    [["six"]],
    [["two two"], ["five", "one two three", "four"]],
]


def read(texts) -> list[Document]:
    return [
        Document(tuple(tuple(Sentence(text, text[::-1]) for text in part) for part in parts))
        for parts in texts
    ]


def made(boundaries: Boundaries = TRUE, **changes) -> DocumentTranslator:
    words = Sentence(" ".join(WORDS), " ".join(word[::-1] for word in WORDS))
    vocabularies = build_tokenizers(TokenizerConfig(kind="word", vocab_size=60), [Document(((words,),))])
    size = vocabularies.source.vocab_size
    model = small_model(size, size, **changes)
    params = float32(random_params(model, seed=3))
    options = {"max_sentences": 4, "overlap": 1, "boundaries": boundaries}
    return DocumentTranslator(model, params, vocabularies, DecodingConfig(batch_size=4), **options)


KINDS = {
    "conditional": dict(document=DocumentConfig(("conditional",), t=2)),
    "levels in the decoder": dict(
        document=DocumentConfig(("document",), levels=("word", "sentence"), count="unit")
    ),
    "budgets": dict(document=DocumentConfig(("document",)), budget=BudgetConfig((1.0, 0.5), (1.0, 0.5))),
    "boundaries elsewhere": dict(
        document=DocumentConfig(("document",), cross="document"), boundaries=Boundaries("jittered", 1)
    ),
    "context in the decoder": dict(document=DocumentConfig(("sentence",), decoder_context=True)),
    "heads in the decoder": dict(document=DocumentConfig(("sentence",), decoder_heads=True)),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "conditional" else pytest.mark.slow) for kind in KINDS]
)
def test_a_judged_sentence_scores_as_in_its_whole_document(kind):
    translator, documents = made(**KINDS[kind]), read(TEXTS)
    whole = [[score.log_prob for score in found] for found in translator.score_documents(documents)]
    judged = [(document, i) for document in documents for i in range(len(document))]
    expected = [score for scores in whole for score in scores]
    np.testing.assert_allclose(translator.log_probs(judged[::-1]), expected[::-1], rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 0.1
    if kind == "budgets":
        less = [
            score.log_prob for found in translator.score_documents(documents, budget=0.5) for score in found
        ]
        np.testing.assert_allclose(translator.log_probs(judged, budget=0.5), less, rtol=1e-4, atol=1e-4)
        assert np.abs(np.subtract(less, expected)).max() > 1e-3
