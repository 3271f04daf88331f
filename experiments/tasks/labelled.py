"""Fine-tuning: classes of texts and pairs, labels of words, answers to questions (Devlin et al. 2019, section 4)."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
from jax.sharding import Mesh

from experiments.tasks.corpora import make_once, make_vocabularies
from experiments.tasks.labelled_sets import LabelledSet, examples_of, make_set, names_of, texts_of
from experiments.tasks.task import Losses, Scored, Task
from flaxnmt.config import Config
from flaxnmt.data.batches import ShuffledBatches, SortedBatches
from flaxnmt.data.buckets import extend, plan_buckets
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.tokenizers import ENCODER_SYMBOLS
from flaxnmt.errors import ConfigError
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.models.flops import sequence_flops
from flaxnmt.run import LABELS, load_vocabularies, make_model, write_json
from flaxnmt.training.labelled import span_logits
from flaxnmt.training.step import Objective
from flaxnmt.typing import Params


class LabelledScores:
    """Loss on the development set, and the usual scores of what the model says of a set."""

    def __init__(self, model: EncoderOnly, losses: Losses, dev: LabelledSet, test: LabelledSet | None):
        self.losses, self.whole = losses, losses.whole
        self.dev_set, self.test_set = dev, test
        self._logits = jax.jit(partial(_logits, model), out_shardings=losses.whole)

    def scores(self, params: Params, labelled: LabelledSet) -> Scored:
        batches = SortedBatches(labelled.rows, self.losses.batches.plan)
        found = [self._logits(params, self.losses.put(batches, i)) for i in range(len(batches))]
        return labelled.scored(batches.restore(jax.device_get(found)))

    def __call__(self, params: Params) -> Scored:
        scores, lines = self.scores(params, self.dev_set)
        return self.losses(params) | scores, lines

    def test(self, params: Params) -> Scored:
        return self.scores(params, self.test_set)


def _logits(model: EncoderOnly, params: Params, batch):
    logits = model.apply({"params": params}, batch["tokens"], batch["segments"])
    return span_logits(logits, batch["tokens"]) if model.config.head == "spans" else logits


def make(config: Config, directory: Path, bring: Callable[[], None]) -> Task:
    """The task of a head that classifies.

    Raises:
      ConfigError: without labelled data, or for other labels than the model has.
      DataError: if data cannot be used.
    """
    data, head = config.data, config.model.head
    for name in ("train", "dev"):
        if not getattr(data, name):
            raise ConfigError(f"no --{name} corpus: give a labelled file or tfds:NAME")
    names = names_of(head, data.train, data, config.model.classes)
    data = dataclasses.replace(data, labels=names)
    examples = {
        name: examples_of(head, getattr(data, name), names)
        for name in ("train", "dev", "test")
        if getattr(data, name)
    }

    def prepare() -> None:
        sentences = [Document(((Sentence(text),),)) for text in texts_of(examples["train"])]
        make_vocabularies(data, directory, lambda: sentences, ENCODER_SYMBOLS)
        write_json(directory / LABELS, names)

    make_once(prepare)
    bring()
    vocabularies = load_vocabularies(directory, config)
    tokenizer = vocabularies.source
    sets = {name: make_set(head, found, tokenizer, data) for name, found in examples.items()}
    train = sets["train"].rows
    plan = plan_buckets(
        train.lengths,
        train.lengths,
        max_length=data.max_length,
        batch_tokens=data.batch_tokens,
        buckets=data.buckets,
        rows_multiple=data.rows_multiple,
        length_multiple=data.length_multiple,
    )
    longest = max(int(labelled.rows.lengths.max()) for labelled in sets.values())
    dev_plan = extend(plan, longest, rows_multiple=data.rows_multiple)
    model = make_model(config, vocabularies)

    def evaluator(objective: Objective, params: Params, mesh: Mesh) -> LabelledScores:
        losses = Losses(objective, SortedBatches(sets["dev"].rows, dev_plan), mesh)
        return LabelledScores(model, losses, sets["dev"], sets.get("test"))

    outputs = {"classes": 1}.get(head, data.max_length)
    return Task(
        model=model,
        vocabularies=vocabularies,
        corpus=train,
        train=ShuffledBatches(train, plan, config.training.seed),
        flops=lambda batch: sequence_flops(
            config.model, config.model.classes, batch["tokens"].shape, outputs
        ),
        evaluator=evaluator,
        examples="rows",
        sizes="(tokens, tokens)",
        use='to use it: flaxnmt.open_run("{run}").classify' if head == "classes" else "",
    )
