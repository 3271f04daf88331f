"""With `--decoding.no-skip` a model with gates translates as with what they decide against left out."""

import dataclasses

import numpy as np
import pytest
from small_models import CONFIG, float32, random_params, small_decoder, small_model

from flaxnmt.config import DecodingConfig
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.tokenizers import train
from flaxnmt.data.vocabularies import Vocabularies
from flaxnmt.models.config import BudgetConfig, DocumentConfig
from flaxnmt.models.decoder_only import DecoderOnly
from flaxnmt.translation import programs
from flaxnmt.translation.documents import DocumentTranslator
from flaxnmt.translation.lines import Text
from flaxnmt.translation.translator import Translator

LINES = ["the cat", "a dog sees the cat", "dog", "the dog sees a cat and a dog"]
LEVELS = (1.0, 0.5)


def two_stacks(size):
    one_layer = dataclasses.replace(CONFIG.decoder, layers=1)
    return small_model(size, size, budget=BudgetConfig(LEVELS, LEVELS, blocks=1), decoder=one_layer)


def one_stack(size):
    return DecoderOnly(small_decoder(budget=BudgetConfig(decoder=LEVELS, blocks=1)).config, size)


def scanned(size):
    return small_model(size, size, budget=BudgetConfig(LEVELS, LEVELS, blocks=1), scan=True)


@pytest.mark.slow
@pytest.mark.parametrize("build", [two_stacks, one_stack, scanned])
def test_what_is_multiplied_by_zero_is_translated_as_what_is_left_out(build):
    tokenizer = train("bpe", LINES, 32)
    model = build(tokenizer.vocab_size)
    made = model, float32(random_params(model)), Vocabularies(tokenizer, tokenizer)
    skipping, masking = (
        Translator(*made, DecodingConfig(beam_size=2, batch_size=4, skip=skip)) for skip in (True, False)
    )
    both = (who.hypotheses(LINES, budget=0.5, max_length=6) for who in (skipping, masking))
    for one, other in zip(*both, strict=True):
        assert [found.tokens for found in one] == [found.tokens for found in other]
        np.testing.assert_allclose([f.score for f in one], [f.score for f in other], rtol=1e-5, atol=1e-5)
    one, other = (who.score(LINES, LINES[::-1], budget=0.5) for who in (skipping, masking))
    np.testing.assert_allclose([s.log_prob for s in one], [s.log_prob for s in other], rtol=1e-5)
    assert [s.use for s in one] == [s.use for s in other]
    used = np.asarray([s.use for s in one])
    assert 0 < used.min() and used.max() < 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conditional", "context"])
def test_documents_are_translated_as_with_nothing_left_out(kind):
    tokenizer = train("bpe", LINES, 32)
    size = tokenizer.vocab_size
    document = DocumentConfig((kind,), t=2)
    model = small_model(size, size, budget=BudgetConfig(LEVELS, LEVELS, blocks=1), document=document)
    made = model, float32(random_params(model)), Vocabularies(tokenizer, tokenizer)
    texts = [Document((tuple(Sentence(line, line) for line in part),)) for part in (LINES[:3], LINES[3:])]
    skipping, masking = (
        DocumentTranslator(
            *made, DecodingConfig(beam_size=2, batch_size=4, skip=skip), max_sentences=4, overlap=1
        ).outputs(Text.of_documents(texts), budget=0.5, max_length=6)
        for skip in (True, False)
    )
    for one, other in zip(skipping, masking, strict=True):
        assert [found.tokens for found in one] == [found.tokens for found in other]
        np.testing.assert_allclose([f.score for f in one], [f.score for f in other], rtol=1e-5, atol=1e-5)


def test_nothing_is_conditional_without_skipping(monkeypatch):
    # On CPUs a cache is read as far as it is written, whatever gates there are.
    monkeypatch.setattr(programs, "segments_here", lambda: 1)
    tokenizer = train("bpe", LINES, 32)
    model = two_stacks(tokenizer.vocab_size)
    made = model, float32(random_params(model)), Vocabularies(tokenizer, tokenizer)
    batch = {name: np.ones(2, np.int32) for name in ("max_lengths", "min_lengths", "rows", "budget")}
    batch |= {"source": np.ones((2, 4), np.int32), "prefix": np.zeros((2, 0), np.int32)}
    options = {"max_length": 4, "beam_size": 2, "n_best": 1, "length_penalty": 0.0}
    for skip in (True, False):
        search = Translator(*made, DecodingConfig(skip=skip))._beam
        assert ("stablehlo.case" in search.lower(made[1], batch, **options).as_text()) == skip
