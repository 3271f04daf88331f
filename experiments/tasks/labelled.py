"""Fine-tuning: classes of texts and pairs, labels of words, answers to questions (Devlin et al. 2019, section 4)."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.tasks.corpora import make_once, make_vocabularies
from experiments.tasks.labelled_sets import LabelledSet, examples_of, make_set, names_of, texts_of
from experiments.tasks.task import Scored, Task, at_budgets, check_metric, means, placed
from flaxnmt.config import Config
from flaxnmt.data.batches import ShuffledBatches, SortedBatches
from flaxnmt.data.buckets import BucketPlan, extend, plan_buckets
from flaxnmt.data.documents import Document, Sentence
from flaxnmt.data.labelled.spans import NOWHERE
from flaxnmt.data.tokenizers import ENCODER_SYMBOLS
from flaxnmt.errors import ConfigError
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.models.flops import sequence_flops
from flaxnmt.run import make_model
from flaxnmt.run_directory import LABELS, load_vocabularies, write_json
from flaxnmt.training.labelled import labelled_logits, labelled_sums
from flaxnmt.training.step import Objective, Sums
from flaxnmt.typing import Params

METRICS = {
    "classes": ("accuracy", "f1", "matthews", "loss"),
    "labels": ("accuracy", "f1", "matthews", "loss"),
    "spans": ("exact_match", "f1", "loss"),
}
"""What a run with each head may be judged by."""

USES = {"classes": "classify", "labels": "label", "spans": "answer"}
"""What asks a run with each head."""


class LabelledScores:
    """Loss on the development set, and the usual scores of what the model says of a set, at each of its budgets.

    Attributes:
      model: the module.
      plan: of the batches of both sets.
      dev_set, test_set: what is scored.
      mesh: on which the parameters lie.
    """

    def __init__(
        self, model: EncoderOnly, plan: BucketPlan, dev: LabelledSet, test: LabelledSet | None, mesh: Mesh
    ):
        self.model, self.plan, self.mesh = model, plan, mesh
        self.dev_set, self.test_set = dev, test
        self.whole = NamedSharding(mesh, PartitionSpec())
        self._said = jax.jit(partial(_said, model), out_shardings=self.whole)

    def scores(self, params: Params, labelled: LabelledSet, loss: bool, budget: int | None = None) -> Scored:
        """Scores at a budget by its place, the largest if None, with `use` and, if wanted, means of the `loss`."""
        batches = SortedBatches(labelled.rows, self.plan)
        found = jax.device_get(
            [self._said(params, placed(batches, i, self.mesh, budget)) for i in range(len(batches))]
        )
        row = means([sums for _, sums in found])
        scores, lines = labelled.scored(batches.restore(logits for logits, _ in found))
        return {name: row[name] for name in row if loss or name == "use"} | scores, lines

    def __call__(self, params: Params) -> Scored:
        return at_budgets(self.model.config.budgets, partial(self.scores, params, self.dev_set, True))

    def test(self, params: Params) -> Scored:
        return at_budgets(self.model.config.budgets, partial(self.scores, params, self.test_set, False))


def _said(model: EncoderOnly, params: Params, batch: dict[str, jax.Array]) -> tuple[jax.Array, Sums]:
    """Logits of each row, and the sums of the objective with the FLOPs used of the full ones."""
    head, budget = model.config.head, batch.get("budget")

    def said(model):
        logits, aux = labelled_logits(
            model, batch["tokens"], batch["segments"], deterministic=True, budget=budget
        )
        use = {} if budget is None else {"used": aux.used.sum(), "full": aux.full.sum()}
        return logits, labelled_sums(logits, batch[head], head) | use

    return model.apply({"params": params}, method=said)


def make(config: Config, directory: Path, bring: Callable[[], None]) -> Task:
    """The task of a head that classifies.

    Raises:
      ConfigError: without labelled data, for a score that there is not, or other labels than the model has.
      DataError: if data cannot be used.
    """
    data, head = config.data, config.model.head
    check_metric(config.training.metric, METRICS[head], f"--model.head {head}")
    for name in ("train", "dev"):
        if not getattr(data, name):
            raise ConfigError(f"no --{name} corpus: give a labelled file or tfds:NAME")
    names = names_of(head, data.train, data, config.model.classes)
    data = dataclasses.replace(data, labels=names)
    examples = {
        name: examples_of(head, getattr(data, name), names, labelled=name != "test", answered=data.answered)
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
    sets = {name: make_set(head, found, tokenizer, data, name) for name, found in examples.items()}
    train = sets["train"].rows
    if head == "spans" and data.answered:
        train = train.at([place for place, answer in enumerate(train.said) if answer != NOWHERE])
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
        return LabelledScores(model, dev_plan, sets["dev"], sets.get("test"), mesh)

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
        use='to use it: flaxnmt.open_run("{run}").' + USES[head],
    )
