"""What a run is made of: frozen dataclasses that the command line edits and a run directory keeps.

Instances with names live in `experiments/configs`; `open_run` rebuilds a model from what a run saved. `config_io`
writes, reads and compares them; where a run continues, the fields in `experiments.continuing.MAY_CHANGE` may differ.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from flaxnmt.models.config import Architecture

Boundaries = Literal["true", "jittered", "fixed"]
TokenizerKind = Literal["bpe", "unigram", "word", "char", "wordpiece"]


@dataclass(frozen=True)
class TokenizerConfig:
    """Vocabulary: trained on the training text (or loaded from files), saved in the run directory."""

    kind: TokenizerKind = "bpe"
    vocab_size: int = 8000
    """Pieces, special symbols included; an upper bound for kind word and char."""
    shared: bool = True
    """One vocabulary for both languages (needed for tied source and target embeddings)."""
    lowercase: bool = False
    """Lower-case text before it is cut into pieces."""
    character_coverage: float = 1.0
    """Share of characters that get a piece of their own; the rest are unknown."""
    symbols: tuple[str, ...] = ()
    """Further pieces that are never made from text, such as [MASK] [CLS] [SEP]; but for language tags, such as <2de> <2fr>,
    with which a source may begin."""
    source_model: str | None = None
    """A trained vocabulary to load in place of training one: a sentencepiece model, or for WordPiece a tokenizer.json
    or the vocab.txt of a BERT."""
    target_model: str | None = None
    """The same for the target; the source's where it is shared."""


@dataclass(frozen=True)
class DataConfig:
    """Corpus to static batches."""

    train: tuple[str, ...] = ()
    """Training corpus: a document file, `tfds:...` or `discourse...`; source and target files; or those and HAN
    line numbers. A slice behind the name of a file, such as train.en[:3000], is a part of its documents, or lines."""
    dev: tuple[str, ...] = ()
    """Development corpus, in the same forms."""
    test: tuple[str, ...] = ()
    """Test corpus, translated and scored once at the end."""
    paragraphs: bool = False
    """In plain text a single blank line ends a paragraph, and two end the document."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    max_length: int = 128
    """Tokens on either side, end symbol included; longer pairs are skipped and counted in training. Of a model of texts:
    tokens of each sequence."""
    max_sentences: int = 16
    """Sentences of a document that a model of documents sees together; longer documents are cut."""
    overlap: int = 2
    """Sentences of context on either side of such a cut."""
    boundaries: Boundaries = "true"
    """Where the encoder of a model of documents sees sentences end: where they do, `jittered` around there, or at
    `fixed` lengths. The decoder still looks at the words of its own sentence."""
    previous: int = 0
    """Previous sentences that are put before each source sentence, with a break symbol between them."""
    previous_target: bool = False
    """Put the previous target sentences before the target, too (2-to-2); else the source's alone (2-to-1)."""
    batch_tokens: int = 4096
    """Padded target tokens in a global batch, the same in every bucket."""
    buckets: int = 5
    """Number of static (source length, target length) shapes."""
    length_multiple: int = 8
    """Lengths of the shapes are multiples of this: 4 pads less, 128 fills the tiles of a TPU."""
    rows_multiple: int = 8
    """Rows of a batch are a multiple of this, whatever the number of devices."""
    labels: tuple[str, ...] = ()
    """Names of the classes of labelled text, in the order of their numbers; those of the training corpus, sorted, if
    empty."""
    stride: int = 64
    """Tokens by which one window over a long text, in which an answer is looked for, begins behind the one before."""
    answered: bool = False
    """Of questions, leave out those without an answer, and in training the windows that do not hold it. Else no answer
    is one, too, which a small model learns to give to every question."""
    workers: int = 0
    """Threads that tokenise a corpus; 0 is one per core."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam or AdamW and the schedule of its learning rate."""

    name: Literal["adam", "adamw"] = "adam"
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"] = "noam"
    learning_rate: float = 1e-3
    """Peak rate of all but noam."""
    factor: float = 1.0
    """Factor of noam: factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)."""
    warmup_steps: int = 4000
    final_fraction: float = 0.0
    """Where cosine and linear end, as a share of the peak."""


@dataclass(frozen=True)
class BudgetLossConfig:
    """How a model with gates (`model.budget`) is made to keep to its budgets (Bapna et al. 2020)."""

    weight: float = 1.0
    """Weight of the budget loss beside the loss of a target token."""
    normaliser: Literal["budget", "total", "squared"] = "budget"
    """The difference between use and budget is divided by the budget, by the full computation, or by the square of the
    budget, which keeps to small ones without pressing on larger ones as much."""
    count: Literal["expected", "decided"] = "expected"
    """What a gate counts while training: its value with noise (the paper's), or the decision that it would be in
    inference, with the gradient of that value; so the budget holds for what is computed, however short the training. Values
    count for the full budget always, whose gates then have to be open in spite of the noise."""
    two_sided: bool = True
    """Less than the budget costs, too."""
    per_sequence: bool = False
    """The budget holds for each sequence by itself, in place of all sequences of a batch together."""
    full_share: float = 0.5
    """Share of the sequences that have the full budget on a side (the paper's half); the others are uniform over its smaller
    levels. A smaller share brings small budgets nearer to the full one, where training is short."""
    joint: bool = False
    """That share of the sequences has the full budget on both sides at once; else each side is drawn by itself."""
    begin: int = 0
    """Updates before the first budget is drawn and the first noise: until then all is trained at the full budget, with all
    gates open, and control networks learn to open them from the budget loss alone."""
    fall_steps: int | None = None
    """Updates until budgets are at their levels, to which they come down from the whole in a line after `begin`, so that what
    a model needs least goes first; at once if None."""
    decide_from: int | None = None
    """Updates after which gates are decisions in training, too, so that what is behind them learns to do with what is left;
    control networks then learn from the budget loss alone. Never if None."""
    noise_start: float = 0.0
    """Scale of the noise on gates at the first update that has some."""
    noise_end: float = 5.0
    """Scale from `noise_steps` on; it grows in a line."""
    noise_steps: int | None = None
    """Updates until the noise is at its end; --max-steps if None."""


@dataclass(frozen=True)
class TrainingConfig:
    """How long, how often, what is kept."""

    seed: int = 1
    max_steps: int | None = None
    """Optimizer steps (updates), accumulated batches counted once."""
    max_epochs: int | None = None
    max_minutes: float | None = None
    """Wall minutes of training over all continuations of the run."""
    freeze: tuple[str, ...] = ()
    """Parameters that keep the values they start with: beginnings of their paths, such as encoder/stack/layers_0,
    patterns, such as */attention, or `initialised`, all that come from --init-from."""
    label_smoothing: float = 0.1
    """Share of a target token's probability that is spread over the vocabulary, in the loss of translation."""
    budget: BudgetLossConfig = field(default_factory=BudgetLossConfig)
    loss_chunk: int | None = 1024
    """Target positions whose logits a device has in memory at a time; None, or a mesh with a model axis: all."""
    accumulate: int = 1
    """Batches per update."""
    ema: float | None = None
    """Decay of an exponential moving average of the parameters; evaluated and exported in their place."""
    evaluate_every: int = 1000
    """Updates between evaluations on the development set."""
    evaluate_translations: int | None = None
    """Development lines that are translated at an evaluation, in whole documents (all if None); the loss always
    uses all."""
    metric: Literal["bleu", "chrf", "loss", "accuracy", "matthews", "f1", "exact_match"] = "bleu"
    """What best means, for early stopping and for the best checkpoints."""
    patience: int | None = None
    """Evaluations without improvement before the run stops."""
    checkpoint_every: int | None = None
    """Updates between checkpoints; at every evaluation if None."""
    keep_last: int = 2
    keep_best: int = 1
    average: Literal["none", "last", "best"] = "none"
    """What is exported at the end: the best parameters, or the mean of the last or best kept ones. With `ema`, which
    averages already, always the best."""
    average_count: int = 5
    """Checkpoints of that mean, so many of which are kept."""
    log_every: int = 20
    tensorboard: bool = False
    max_bad_steps: int = 5
    """Consecutive non-finite losses (each step skipped) after which the run stops."""


@dataclass(frozen=True)
class DecodingConfig:
    """Defaults of translation."""

    beam_size: int = 4
    length_penalty: float = 0.6
    """Exponent alpha of Wu et al. 2016: score / ((5 + length) / 6)^alpha."""
    max_length_factor: float = 1.5
    max_length_extra: int = 10
    """Longest output: factor * source tokens + extra."""
    min_length: int = 0
    batch_size: int = 64
    skip: bool = True
    """Leave out what gates decide against; else it is multiplied by zero: the same translations, and far less to compile."""


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; -1 takes what the others leave."""

    data: int = -1
    fsdp: int = 1
    model: int = 1
    branches: bool = False
    """Encoders that read the same source (--model.encoder.branches) are computed side by side by the devices of `model`,
    which divides rows everywhere else; it pays where a long recurrence is among them (`tpu.plan` says so)."""


@dataclass(frozen=True)
class Config:
    """A whole experiment."""

    model: Architecture
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def replace(self, **changes) -> "Config":
        return dataclasses.replace(self, **changes)
