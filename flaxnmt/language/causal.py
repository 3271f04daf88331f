"""What a decoder alone says of texts: embeddings of their tokens in every layer."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from flaxnmt.data.tokenizers import Offsets, Tokenizer
from flaxnmt.language.contextual import Contextual, contextual, told
from flaxnmt.models.decoder_only import DecoderOnly
from flaxnmt.symbols import BOS, EOS
from flaxnmt.translation.lines import refuse_one
from flaxnmt.translation.shapes import longest_of
from flaxnmt.typing import Array, Float, Int, Params


class CausalReader:
    """A decoder alone with its parameters and vocabulary.

    A model of texts reads bos and the text, a model of translation the text as a source and the delimiter.

    Attributes:
      model: the module.
      params: its parameters.
      tokenizer: of texts.
      last: the symbol behind a text; None where there is none, since what ends a text is said and never read.
    """

    def __init__(self, model: DecoderOnly, params: Params, tokenizer: Tokenizer, skip: bool = True):
        self.model, self.params, self.tokenizer = model, params, tokenizer
        self._of_texts = model.config.task == "language"
        self.last = None if self._of_texts else BOS
        every = partial(model.apply, skip=skip and bool(model.config.budgets), method="layers")
        layers = every if self._of_texts else partial(self._source_layers, every)
        self._layers = partial(jax.jit(layers), {"params": params})

    @staticmethod
    def _source_layers(
        every: Callable[..., Array], variables: Params, source: Int[Array, "B S"], budget
    ) -> Float[Array, "layers B S D"]:
        """Of the words of sources, and of the delimiter in the place of eos."""
        nothing = jnp.full((len(source), 1), EOS, source.dtype)
        found = every(variables, nothing, source, budget=budget)
        return jnp.where((source == EOS)[..., None], found[:, :, -1:], found[:, :, :-1])

    def read(self, text: str) -> Offsets:
        """The tokens of a text as the model reads them, without the symbol behind it, and where they stand."""
        ids, spans = self.tokenizer.encode_with_offsets(text)
        return Offsets([BOS, *ids], [(0, 0), *spans]) if self._of_texts else Offsets(ids, spans)

    def contextual(
        self, texts: Sequence[str], budget: float | Sequence[float] | None = None
    ) -> list[Contextual]:
        """Embeddings of every token of each text in every layer, given those before it.

        What the gates of a model decide against at a budget, its largest if None, is not computed, or multiplied by zero.

        Raises:
          ConfigError: for a budget for which the model was not trained.
        """
        refuse_one(texts)
        config, at = self.model.config, told(self.model.config, budget)
        read = list(map(self.read, texts))

        def layers(tokens):
            return self._layers(tokens, budget=at(len(tokens)))

        return contextual(read, layers, self.tokenizer.pieces, longest_of(config), self.last)
