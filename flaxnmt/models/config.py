"""What a model is made of; `flaxnmt.models.build` makes the parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import jax.numpy as jnp

from flaxnmt.config_io import nearest
from flaxnmt.encoders.convs2s import RESIDUAL_SCALE
from flaxnmt.encoders.static_expansion import COEFFICIENTS, Enrichment
from flaxnmt.errors import ConfigError
from flaxnmt.gates.budget import Budget, budget_tuples

AttentionKind = Literal["sentence", "document", "context", "heads", "conditional", "hierarchical"]
MixingKind = Literal["lstm", "convs2s", "fnet", "static_expansion"]
LOCAL_KINDS = ("lstm", "convs2s")
"""Layers whose rows see those before them, or their neighbours, and never the whole of a text."""

EncoderKind = AttentionKind | MixingKind
SentenceEncoder = Literal["source2token", "multi_dimensional", "mean"]
Level = Literal["word", "sentence", "paragraph"]
Part = Literal["encoder", "decoder"]
Head = Literal["masked", "classes", "labels", "spans"]


@dataclass(frozen=True)
class MultiHead:
    """Multi-head dot-product attention."""

    heads: int = 8


@dataclass(frozen=True)
class ExpansionConfig:
    """Static Expansion (Hu et al. 2023, section 3)."""

    vectors: tuple[int, ...] = COEFFICIENTS
    """Expansion vectors of each layer of static_expansion of an encoder, in order, repeated in deeper stacks."""
    enrichment: Enrichment = "shared_projection"
    """How the vectors learn of the sequence: with one matrix for queries and biases, or one set of vectors for both."""
    by_length: bool = False
    """Divide the enrichment by the length of the sequence, with which it grows."""


@dataclass(frozen=True)
class EncoderConfig:
    layers: int = 6
    attention: MultiHead = field(default_factory=MultiHead)
    feed_forward: int = 2048
    """F, the inner dimension of the feed-forward networks."""
    branches: tuple[str, ...] = ()
    """Encoders side by side (Hu et al. 2023), each by its layers, in place of --model.encoder.layers: `attention:6`, or
    `lstm:1+attention:5` for layers of several kinds; a kind without a number is one layer. Kinds: attention (within a
    sentence), lstm, convs2s, fnet, static_expansion, and those of --model.document.layers but `sentence`, which make a
    model of documents. Or the paper's `base`, `dual`, `triple`, `quadruple`, `quintuple`. None: one encoder of
    `layers`."""
    combine: Literal["sum", "weighted", "gated"] = "sum"
    """Outputs of branches are added, with a learned weight for each, or with a gate for each token. Branches that end in a
    norm of their own have its scale for a weight already: weighted says more with --model.encoder.final-norm sum."""
    final_norm: Literal["each", "sum"] = "each"
    """Whether branches of a pre-norm model end in a norm each, or what they become together in one, which Hu et al. 2023
    leave open."""
    convolution: int = 3
    """Width of the kernel of convs2s, odd."""
    forget_bias: float = 0.0
    """Of the forget gates of lstm at first. Without skip connections M layers delay what they read by about
    M exp(forget_bias) words."""
    recurrence_dropout: float | None = None
    """On the output of a layer of lstm, which is all that the next one sees; None: --model.dropout."""
    transform_dropout: float | None = None
    """On the transform of fnet, which is not normalised; None: --model.dropout. Lee-Thorp et al. 2022 have none, and with
    norms behind the transform (--model.norm post) it costs much."""
    expansion: ExpansionConfig = field(default_factory=ExpansionConfig)
    convolution_skip_scale: float = RESIDUAL_SCALE
    """Factor of the sum of a layer of convs2s and its input: that of Gehring et al. 2017, which keeps its variance, or 1,
    since Hu et al. 2023 do not say whether they have it."""


@dataclass(frozen=True)
class DecoderConfig:
    layers: int = 6
    attention: MultiHead = field(default_factory=MultiHead)
    """Of the target over itself and over the source."""
    feed_forward: int = 2048


@dataclass(frozen=True)
class DocumentConfig:
    """What a model of whole documents has beyond one of sentences (Trankova et al. 2024)."""

    layers: tuple[AttentionKind, ...] = ()
    """Self-attention of each encoder layer, or one for all: `sentence` (within it), `document` (all words of the
    document), `context` (within the sentence, then a block over sentence encodings), `heads` (over encodings in
    additional heads), `conditional` (the words of the t most relevant sentences), `hierarchical` (the same, found
    in a tree). None: a model of sentences."""
    decoder_context: bool = False
    """Decoder layers look at encodings of the sentences of the source document, too, in a block of its own."""
    decoder_heads: bool = False
    """The same in additional heads of their attention over the source."""
    cross: Literal["sentence", "document"] = "sentence"
    """What the decoder's attention over the source sees: the sentence itself, or all words of the document; then the
    position of the sentence is added to its target tokens, which says which one to write."""
    t: int = 4
    """Sentences that each head selects for each word (conditional, hierarchical)."""
    always_keep_own: bool = False
    """A word's own sentence is always among them."""
    dispatched: bool | None = None
    """Compute scores for the words of selected sentences alone, or for all words, masked; None: what is faster, and the
    first for more than 2048 words, whose scores would not fit."""
    kernel: Literal["xla", "splash"] = "xla"
    """How attention to all words of a document is computed: with scores that are kept, or block by block by the splash
    kernel, which pays on TPUs from about a thousand words on (document)."""
    context_heads: int = 2
    """Additional heads over sentence encodings (heads, decoder_heads)."""
    sentence_encoder: SentenceEncoder = "source2token"
    merge: SentenceEncoder = "source2token"
    """What makes a node of the tree of its two children (hierarchical)."""
    select_by: Literal["raw", "cumulative"] = "raw"
    """The score by which a level keeps nodes: their own, or the sum over their path (hierarchical)."""
    count_copies: bool = True
    """A node that is the only child of its parent, hence its copy, adds its score again (hierarchical)."""
    levels: tuple[Level, ...] = ("word", "sentence", "paragraph")
    """Structural levels of the source whose positions are encoded, summed."""
    count: Literal["sequence", "unit"] = "sequence"
    """Positions count from the beginning of the document (the paper's 135th word of the text) or of the unit. A document
    of more sentences than --data.max-sentences is cut, and each part counts from its own beginning."""
    roll_levels: bool = False
    """Sinusoids of each level have their features rolled, so that no two places of a document look alike."""
    sentence_ends: bool = True
    """The encoder sees a break token at the end of each sentence."""

    @property
    def decoder_looks_around(self) -> bool:
        """Whether the decoder sees more of the source than the sentence that it writes."""
        return self.decoder_context or self.decoder_heads or self.cross == "document"


@dataclass(frozen=True)
class BudgetConfig:
    """Budgets of computation for which one model is trained (Bapna et al. 2020)."""

    encoder: tuple[float, ...] = ()
    """Shares of its full computation that the encoder may be told to use, such as 1 0.75 0.5 0.25. None: no gates."""
    decoder: tuple[float, ...] = ()
    """The same of the decoder. Each pair of a level of both is a budget with a control symbol of its own."""
    blocks: int = 4
    """Parts into which a feed-forward network is cut, each with its own gate (the paper's m)."""
    control_hidden: int | None = None
    """Hidden size of the networks that control gates; an eighth of d_model if None (the paper's 128 at its 1024)."""
    control_scale: float = 1.0
    """Factor of the logits of gates. An update moves them so many times as far, so that gates are decided after a short
    training, too; the paper's is long."""
    normed_outputs: bool = True
    """Outputs of sub-layers are normalised in front of their gates (the paper's); without, open gates are an ordinary
    Transformer."""
    normed_keys: bool = False
    """Keys and values of attention are normalised in front of their gates, too."""
    branches: tuple[int, ...] = ()
    """Which of --model.encoder.branches have gates, counted from 1; others are always computed whole, and count with that.
    None: all."""


@dataclass(frozen=True)
class ModelConfig:
    """What models of every family have in common."""

    d_model: int = 512
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["sinusoidal", "learned", "none", "shaw", "transformer_xl", "rotary"] = "sinusoidal"
    """Encodings added to embeddings (sinusoidal, learned), or distances of words in self-attention: `shaw` (Shaw et al.
    2018), `transformer_xl` (Dai et al. 2019), `rotary` (Su et al. 2021). These count the words of a document from its
    beginning, or from that of each part into which it is cut, and know of no other level."""
    max_positions: int = 512
    """Rows of learned position tables: all that batches may reach, in a document counted over the sequence max_sentences
    times max_length of the data."""
    relative_clip: int = 16
    """Distance from which on words are equally far (shaw)."""
    relative_values: bool = True
    """Distances add to values, as to keys (shaw)."""
    attention_weights: Literal["soft", "threshold", "argmax"] = "soft"
    """Weights of all attention: of a softmax, 1 for each score above --model.attention-threshold, or 1 for the largest."""
    attention_threshold: float = 0.0
    """What a score, q k / sqrt(head size) with what positions add, has to exceed; a word that no score lets look at
    anything gets zeros (threshold)."""
    activation: Literal["relu", "gelu"] = "relu"
    """Inside feed-forward networks."""
    biases: bool = False
    """Projections of attention have biases, too; those of feed-forward networks always do."""
    dropout: float = 0.1
    """Rate on embeddings and on the output of every sub-layer."""
    attention_dropout: float | None = None
    """Rate on attention weights; `dropout` if None."""
    hidden_dropout: float | None = None
    """Rate inside feed-forward networks; `dropout` if None."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Parameters, softmax, logits and loss are float32 in either case."""
    scan: bool = False
    """Run the layers of a stack, where they are alike, as a scan over stacked parameters: compiles faster, holds more
    memory."""
    remat: bool = False
    """Compute activations again in the backward pass."""

    @property
    def dtype(self):
        return jnp.dtype(self.compute_dtype)

    @property
    def is_document(self) -> bool:
        """Whether sources are documents [B, N, M]."""
        return False

    @property
    def packs(self) -> bool:
        """Whether all layers keep documents apart that share a sequence, as attention does."""
        return True

    @property
    def parts(self) -> tuple[Part, ...]:
        """The stacks of the model."""
        return "encoder", "decoder"

    @property
    def budget_levels(self) -> tuple[tuple[float, ...], ...]:
        """Levels of each of its parts, 1 alone for one without gates; empty for a model without gates."""
        levels = [getattr(self.budget, part) for part in self.parts]
        return tuple(part or (1.0,) for part in levels) if any(levels) else ()

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets of the model, such as (encoder, decoder); their places are its control symbols."""
        return budget_tuples(self.budget_levels) if self.budget_levels else ()


@dataclass(frozen=True)
class EncodingConfig(ModelConfig):
    """Models that have an encoder."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    document: DocumentConfig = field(default_factory=DocumentConfig)

    @property
    def is_document(self) -> bool:
        kinds = {kind for branch in self.encoder_branches for kind in branch}
        return bool(self.document.layers) or not kinds.isdisjoint(DOCUMENT_KINDS)

    @property
    def packs(self) -> bool:
        return {kind for branch in self.encoder_branches for kind in branch}.isdisjoint(get_args(MixingKind))

    @property
    def sees_all(self) -> bool:
        """Whether every row of the output knows the whole text: a layer of some encoder looks at all of it."""
        return any(kind not in LOCAL_KINDS for branch in self.encoder_branches for kind in branch)

    @property
    def encoder_branches(self) -> tuple[tuple[EncoderKind, ...], ...]:
        """The kind of each layer of each encoder; one encoder unless there are branches."""
        if self.encoder.branches:
            names = [part for name in self.encoder.branches for part in ENCODER_SETS.get(name, (name,))]
            return tuple(map(parse_branch, names))
        kinds = self.document.layers or ("sentence",)
        return (kinds * self.encoder.layers if len(kinds) == 1 else kinds,)

    def of_branch(self, place: int) -> "EncodingConfig":
        """What an encoder is made by: the model itself, or the same without gates."""
        if not self.budget.branches or place + 1 in self.budget.branches:
            return self
        return replace(self, budget=replace(self.budget, encoder=()))


@dataclass(frozen=True)
class Seq2SeqConfig(EncodingConfig):
    """Transformer encoder-decoder."""

    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    tie: Literal["all", "target", "none"] = "all"
    """Embeddings that are one table: source, target and output; target and output; none."""


@dataclass(frozen=True)
class EncoderOnlyConfig(EncodingConfig):
    """An encoder by itself, such as BERT (Devlin et al. 2019), and what is read off its output."""

    head: Head = "masked"
    """What it says: the tokens that are masked (`masked`), the class of a text or of a pair of texts (`classes`), the
    label of each token (`labels`), where an answer begins and ends (`spans`). A class is read off the first token or,
    where no layer looks at the whole text (lstm and convs2s alone), off the mean of all."""
    classes: int = 2
    """Classes or labels to choose from."""
    segments: int = 2
    """Texts of a sequence that are told apart by an embedding; 0: none."""
    embedding_norm: bool = True
    """Normalise the sum of the embeddings."""

    @property
    def parts(self) -> tuple[Part, ...]:
        return ("encoder",)

    @property
    def ends_in_rows(self) -> bool:
        """Whether the last layer can compute its output for some tokens alone.

        So it is where it is the end of a single encoder and attention within the sequence, with no gates, whose use is
        counted over all tokens, and no scan, in which it is like all others.
        """
        (kinds, *others) = self.encoder_branches
        return kinds[-1] == "sentence" and not (others or self.budgets or self.scan or self.is_document)


@dataclass(frozen=True)
class DecoderOnlyConfig(ModelConfig):
    """A decoder by itself: source, delimiter and target are one sequence (Liu et al. 2018)."""

    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    """Its layers, which have no attention over a source."""
    task: Literal["translation", "language"] = "translation"
    """Targets that follow their sources, or texts."""
    prefix: Literal["causal", "bidirectional"] = "causal"
    """Whether a symbol of the source sees the source symbols behind it, too."""
    window: int | None = None
    """Symbols that each layer looks back at, its own included, and as many ahead within a source that sees itself whole;
    None: all. So N layers reach N (window - 1) symbols back."""

    @property
    def parts(self) -> tuple[Part, ...]:
        return ("decoder",)


Architecture = Seq2SeqConfig | EncoderOnlyConfig | DecoderOnlyConfig


DOCUMENT_KINDS = tuple(kind for kind in get_args(AttentionKind) if kind != "sentence")


GROWTH = {"attention": 6, "static_expansion": 12, "lstm": 18, "convs2s": 6, "fnet": 6}
"""Encoders in the order in which Hu et al. 2023 add them, and their layers; those of fnet are lost."""


def uses_splash(config: Architecture) -> bool:
    """Whether the model has a kernel that runs on TPUs alone."""
    return config.is_document and config.document.kernel == "splash"


def encoder_set(size: int, layers: Sequence[int] = tuple(GROWTH.values())) -> tuple[str, ...]:
    """The first `size` encoders of the paper's growth as branches, with these layers."""
    return tuple(f"{kind}:{count}" for kind, count in zip(tuple(GROWTH)[:size], layers))


ENCODER_SETS = {
    name: encoder_set(size)
    for size, name in enumerate(("base", "dual", "triple", "quadruple", "quintuple"), 1)
}
"""One to five encoders side by side (Hu et al. 2023, table 7)."""


def parse_branch(text: str) -> tuple[EncoderKind, ...]:
    """The kinds of the layers of an encoder, from text such as `attention:6` or `lstm:1+attention:5`.

    Raises:
      ConfigError: for a kind that there is not, or a number of layers that is none.
    """
    names = {"attention": "sentence"} | {name: name for name in (*get_args(MixingKind), *DOCUMENT_KINDS)}
    layers = []
    for part in text.split("+"):
        name, colon, count = part.partition(":")
        if name not in names:
            raise ConfigError(
                f"--model.encoder.branches {text}: no encoder is called {name!r}{nearest(name, (*names, *ENCODER_SETS))}; "
                f"there are {', '.join(names)}, and sets of them: {', '.join(ENCODER_SETS)}"
            )
        if colon and not (count.isdecimal() and int(count)):
            raise ConfigError(f"--model.encoder.branches {text}: {count!r} is no number of layers")
        layers += [names[name]] * (int(count) if colon else 1)
    return tuple(layers)


def _size(d_model: int, layers: int, heads: int, feed_forward: int) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        d_model=d_model,
        encoder=EncoderConfig(layers, MultiHead(heads), feed_forward),
        decoder=DecoderConfig(layers, MultiHead(heads), feed_forward),
    )


PRESETS = {
    "tiny": _size(128, 4, 4, 256),
    "small": _size(256, 3, 4, 1024),
    "base": _size(512, 6, 8, 2048),
    "big": _size(1024, 6, 16, 4096),
}
"""The sizes that papers and toolkits compare at; base and big are those of Vaswani et al. 2017, table 3."""
