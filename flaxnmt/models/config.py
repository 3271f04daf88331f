"""What a translation model is made of; `flaxnmt.models.build` makes the parts."""

from dataclasses import dataclass, field
from typing import Literal

import jax.numpy as jnp

from flaxnmt.gates.budget import Budget, budget_tuples

EncoderKind = Literal["sentence", "document", "context", "heads", "conditional", "hierarchical"]
SentenceEncoder = Literal["source2token", "multi_dimensional", "mean"]
Level = Literal["word", "sentence", "paragraph"]


@dataclass(frozen=True)
class MultiHead:
    """Multi-head dot-product attention."""

    heads: int = 8


@dataclass(frozen=True)
class EncoderConfig:
    layers: int = 6
    attention: MultiHead = field(default_factory=MultiHead)
    feed_forward: int = 2048
    """F, the inner dimension of the feed-forward networks."""


@dataclass(frozen=True)
class DecoderConfig:
    layers: int = 6
    attention: MultiHead = field(default_factory=MultiHead)
    """Of the target over itself and over the source."""
    feed_forward: int = 2048


@dataclass(frozen=True)
class DocumentConfig:
    """What a model of whole documents has beyond one of sentences (Trankova et al. 2024)."""

    layers: tuple[EncoderKind, ...] = ()
    """Self-attention of each encoder layer, or one for all: `sentence` (within it), `document` (all words of the
    document), `context` (within the sentence, then a block over sentence encodings), `heads` (over encodings in
    additional heads), `conditional` (the words of the t most relevant sentences), `hierarchical` (the same, found
    in a tree). None: a model of sentences."""
    decoder_context: bool = False
    """Decoder layers look at encodings of the sentences of the source document, too."""
    cross: Literal["sentence", "document"] = "sentence"
    """What the decoder's attention over the source sees: the sentence itself, or all words of the document; then the
    position of the sentence is added to its target tokens, which says which one to write."""
    t: int = 4
    """Sentences that each head selects for each word (conditional, hierarchical)."""
    always_keep_own: bool = False
    """A word's own sentence is always among them."""
    dispatched: bool | None = None
    """Compute scores for the words of selected sentences alone, or for all words, masked; None: what is faster."""
    context_heads: int = 2
    """Additional heads over sentence encodings (heads)."""
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
    """Positions count from the beginning of the document (the paper's 135th word of the text) or of the unit."""
    roll_levels: bool = False
    """Sinusoids of each level have their features rolled, so that no two places of a document look alike."""
    sentence_ends: bool = True
    """The encoder sees a break token at the end of each sentence."""


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


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Transformer encoder-decoder."""

    d_model: int = 512
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    document: DocumentConfig = field(default_factory=DocumentConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_positions: int = 512
    """Rows of learned position tables."""
    tie: Literal["all", "target", "none"] = "all"
    """Embeddings that are one table: source, target and output; target and output; none."""
    dropout: float = 0.1
    """Rate on embeddings and on the output of every sub-layer."""
    attention_dropout: float | None = None
    """Rate on attention weights; `dropout` if None."""
    hidden_dropout: float | None = None
    """Rate inside feed-forward networks; `dropout` if None."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Parameters, softmax, logits and loss are float32 in either case."""
    scan: bool = False
    """Run layers as a scan over stacked parameters: compiles faster, holds more memory."""
    remat: bool = False
    """Compute activations again in the backward pass."""

    @property
    def dtype(self):
        return jnp.dtype(self.compute_dtype)

    @property
    def is_document(self) -> bool:
        """Whether sources are documents [B, N, M]."""
        return bool(self.document.layers)

    @property
    def encoder_kinds(self) -> tuple[EncoderKind, ...]:
        """The kind of attention of each encoder layer."""
        kinds = self.document.layers or ("sentence",)
        return kinds * self.encoder.layers if len(kinds) == 1 else kinds

    @property
    def budget_levels(self) -> tuple[tuple[float, ...], ...]:
        """Levels of encoder and decoder, 1 alone for one without gates; empty for a model without gates."""
        levels = self.budget.encoder, self.budget.decoder
        return tuple(part or (1.0,) for part in levels) if any(levels) else ()

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets (encoder, decoder) of the model; their places are its control symbols."""
        return budget_tuples(self.budget_levels) if self.budget_levels else ()


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
