"""Attention maps of models of one stack."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxnmt.data.labelled.layout import cuts
from flaxnmt.errors import ConfigError
from flaxnmt.language.causal import CausalReader
from flaxnmt.language.contextual import told
from flaxnmt.language.reader import Reader
from flaxnmt.models.decoder_only import DecoderOnly
from flaxnmt.models.encoder_only import EncoderOnly
from flaxnmt.symbols import BOS, EOS
from flaxnmt.translation.shapes import longest_of
from flaxnmt.translation.translator import Translator
from flaxnmt.typing import Array, Float, PyTree

log = logging.getLogger(__name__)


def attending(layers: Sequence[dict[str, PyTree]]) -> list[Float[Array, "B H L L"]]:
    """The attention weights of those layers that attend."""
    return [layer["attention"] for layer in layers if "attention" in layer]


def closed(ids: list[int], longest: int, last: int | None = EOS) -> list[int]:
    """The tokens of a text and the symbol `last`, if any, `longest` together: a longer text is cut, with a warning."""
    end = [] if last is None else [last]
    if said := cuts("texts", [len(ids) + len(end)], longest):
        log.warning("%s", said)
    return [*ids[: longest - len(end)], *end]


def how_to_read(model: DecoderOnly | EncoderOnly) -> tuple[str, str]:
    """(stack of a model of texts, method that runs it).

    Raises:
      ConfigError: for one of translation.
    """
    if not isinstance(model, DecoderOnly):
        return "encoder", "encode"
    if model.config.task == "translation":
        raise ConfigError(
            "this is a model of translation: ask for what it sees in a line and its translation"
        )
    return "decoder", "language"


def of_text(
    reader: Reader | CausalReader, text: str, budget: float | Sequence[float] | None = None
) -> dict[str, Any]:
    """Attention weights over the tokens of one text, at a budget of the model, its largest if None.

    Returns:
      `pieces`, with the symbols that the model reads before and after the text, if any, and `attention` [layers, H, L, L] of
      the layers that attend (of an encoder, in all its branches); row i says where piece i looks.

    Raises:
      ConfigError: for a model of which no layer attends, one of translation, or a budget that it was not trained for.
    """
    model = reader.model
    stack, method = how_to_read(model)

    def capture(variables, tokens, budget):
        aux = model.apply(variables, tokens, capture=True, budget=budget, method=method)[1]
        return attending(aux.maps[stack])

    place = told(model.config, budget)(1)
    ids = closed(reader.read(text).ids, longest_of(model.config), reader.last)
    maps = jax.jit(capture)({"params": reader.params}, jnp.asarray([ids], jnp.int32), place)
    if not maps:
        raise ConfigError("no layer of this model attends: it has no attention to show")
    return {"pieces": [reader.tokenizer.pieces[i] for i in ids], "attention": np.stack(maps)[:, 0]}


def of_pair(
    translator: Translator, source: str, target: str, budget: float | Sequence[float] | None = None
) -> dict[str, Any]:
    """Attention weights of a decoder alone over one sentence, the delimiter and its translation, at a budget.

    Returns:
      `pieces`: those of the source, the delimiter and those of the target, `delimiter`: the place of the second, from
      0, and `attention` [layers, H, L, L]. Row i says where piece i looks; what it produces is the piece behind it.
    """
    tokenizer = translator.vocabularies.source
    longest = longest_of(translator.model.config)
    before, after = (closed(ids, longest)[:-1] for ids in tokenizer.encode([source, target]))

    def capture(model, source, target, budget):
        encoded, _ = model.encode(source, budget=budget)
        return attending(model.decode(encoded, target, capture=True)[1].maps["decoder"])

    ids = [jnp.asarray([[*side, EOS]], jnp.int32) for side in (before, after)]
    look = jax.jit(partial(translator.model.apply, method=capture))
    place = told(translator.model.config, budget)(1)
    maps = np.stack(look({"params": translator.params}, *ids, place))[:, 0]
    # The eos of the source is no input: the delimiter stands in its place.
    there = np.delete(np.arange(maps.shape[-1]), len(before))
    pieces = [tokenizer.pieces[i] for i in (*before, BOS, *after)]
    return {"pieces": pieces, "delimiter": len(before), "attention": maps[..., there[:, None], there]}
