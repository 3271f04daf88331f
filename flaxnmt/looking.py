"""What a model looks at: attention weights of a sentence, sentences that the words of a document select.

Data first, as arrays and lists; `draw_selection` and `draw_path` make pictures of it.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxnmt.attention.hierarchical import TracedSelection
from flaxnmt.attention.selection import Selection
from flaxnmt.attention.tree import level_sizes
from flaxnmt.data.documents import Document
from flaxnmt.data.labelled.layout import cuts
from flaxnmt.data.shards import TokenArray
from flaxnmt.errors import ConfigError, DataError
from flaxnmt.gates import counts
from flaxnmt.gates.budget import find_budget
from flaxnmt.language.attention import attending, closed, of_pair
from flaxnmt.language.contextual import told
from flaxnmt.models.decoder_only import DecoderOnly, one_sequence
from flaxnmt.symbols import EOS, PAD
from flaxnmt.translation.lines import Text
from flaxnmt.translation.shapes import longest_of
from flaxnmt.translation.translator import Translator
from flaxnmt.typing import Bool

log = logging.getLogger(__name__)

WIDTH = 16
"""Lines are padded to multiples of so many tokens where their gates are counted."""


def of_sentence(
    translator: Translator, source: str, target: str, budget: float | Sequence[float] | None = None
) -> dict[str, Any]:
    """Attention weights of one sentence and its translation, at a budget of the model, its largest if None.

    Returns:
      `source` and `target` pieces, `encoder` [layers, H, S, S] (of the layers that attend, in all its branches),
      `decoder` [layers, H, T, T] and `cross` [layers, H, T, S]; row t of the last two is what produced piece t of the
      target. Of a decoder alone see `flaxnmt.language.attention.of_pair`.

    Raises:
      ConfigError: for a model of documents, or a budget that it was not trained for.
    """
    if translator.model.config.is_document:
        raise ConfigError("this is a model of documents: ask for the attention of a Document, not of a line")
    if isinstance(translator.model, DecoderOnly):
        return of_pair(translator, source, target, budget)
    vocabularies = translator.vocabularies
    pairs = [
        (tokenizer, closed(tokenizer.encode([text])[0], longest_of(translator.model.config)))
        for tokenizer, text in ((vocabularies.source, source), (vocabularies.target, target))
    ]

    def capture(model, source, target, budget):
        encoded, encoder = model.encode(source, capture=True, budget=budget)
        _, decoder = model.decode(encoded, target, capture=True)
        return encoder.maps["encoder"], decoder.maps["decoder"]

    ids = [jnp.asarray([tokens], jnp.int32) for _, tokens in pairs]
    look = jax.jit(partial(translator.model.apply, method=capture))
    encoder, decoder = look({"params": translator.params}, *ids, told(translator.model.config, budget)(1))
    # An encoder without attention has no weights.
    none = np.zeros((0, 1, translator.model.config.encoder.attention.heads, *2 * (ids[0].shape[1],)))
    own = attending(encoder)
    maps = {
        "encoder": np.stack(own) if own else none,
        "decoder": np.stack([layer["attention"] for layer in decoder]),
        "cross": np.stack([layer["cross"] for layer in decoder]),
    }
    names = [[tokenizer.pieces[i] for i in tokens] for tokenizer, tokens in pairs]
    return dict(zip(("source", "target"), names)) | {name: m[:, 0] for name, m in maps.items()}


def of_gates(
    translator: Translator,
    sources: Sequence[str] | Sequence[Document],
    targets: Sequence[str] | Sequence[Sequence[str]],
    budget: float | Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """How much each gate lets through, over all tokens of these texts (`flaxnmt.gates.counts.of_gates`).

    Args:
      translator: of a model with gates.
      sources: lines or, to a model of documents, documents.
      targets: their translations, of a document those of its sentences.
      budget: one of the model's; its largest if None.

    Raises:
      ConfigError: for lines where the model reads documents, documents where it reads lines, a model without gates, or a
        budget that it was not trained for.
      DataError: for no lines, or not as many translations.
    """
    model = translator.model
    by_document = model.config.is_document
    if any(isinstance(source, Document) != by_document for source in sources):
        reads, what = ("documents", "Documents") if by_document else ("sentences", "lines")
        raise ConfigError(f"this is a model of {reads}: give {what} and their translations")
    place = find_budget(model.config.budgets, budget)
    if not sources or len(sources) != len(targets):
        what = "documents" if by_document else "lines"
        raise DataError(
            f"{len(sources)} {what} and {len(targets)} translations: gates are counted over pairs of them"
        )
    batches = (_document_batches if by_document else _line_batches)(translator, sources, targets)

    def found():
        for batch in batches:
            gates, seen = _captured(model, place, translator.params, batch)
            yield gates, partial(_tokens, model, batch, seen)

    return counts.of_gates(found())


def _line_batches(translator, sources: Sequence[str], targets: Sequence[str]):
    """Batches of lines, all of one shape; what the model does not read of longer ones is cut."""
    ids, most = [], longest_of(translator.model.config)
    sides = translator.vocabularies.source, translator.vocabularies.target
    for tokenizer, lines in zip(sides, (sources, targets), strict=True):
        tokens = TokenArray.from_lists(tokenizer.encode(list(lines)))
        if said := cuts("lines", tokens.lengths, most):
            log.warning("%s", said)
        # Translations at other budgets are about as long: of one shape, all share a program.
        width = min(-(-int(tokens.lengths.max()) // WIDTH) * WIDTH, most)
        ids.append(tokens.padded(np.arange(len(tokens)), width))
    for source, target in counts.in_batches(*ids):
        yield {"source": source, "target": target}


def _document_batches(translator, documents: Sequence[Document], targets: Sequence[Sequence[str]]):
    """Batches of documents, in which those that are too long are cut as they are for translation."""
    for number, (document, lines) in enumerate(zip(documents, targets, strict=True), 1):
        if len(document) != len(lines):
            raise DataError(f"document {number}: {len(document)} sentences and {len(lines)} translations")
    text = Text.of_documents(documents)
    sides = (
        (translator.vocabularies.source, text.sentences),
        (translator.vocabularies.target, [line for lines in targets for line in lines]),
    )
    ids = [TokenArray.from_lists(translator.encode(tokenizer, lines)) for tokenizer, lines in sides]
    batches = translator.batches(*ids, text, None)
    yield from map(batches.batch, range(len(batches)))


@partial(jax.jit, static_argnums=0)
def _captured(model, place, params, batch):
    """What each gate does with each token, and which tokens of the source the decoder sees."""
    source, target = batch["source"], batch["target"]
    around = {"paragraphs": batch.get("paragraph"), "places": batch.get("places")}

    def capture(model):
        budget = jnp.full(len(source), place, jnp.int32)
        encoded, encoder = model.encode(source, capture=True, budget=budget, **around)
        _, decoder = model.decode(encoded, target, capture=True)
        return encoder.gates | decoder.gates, encoded.mask

    return model.apply({"params": params}, method=capture)


def _tokens(model, batch, seen, stack: str, block: str, kind: str) -> Bool[np.ndarray, "*B L"]:
    """Those about which a gate decides."""
    source, target = batch["source"], batch["target"]
    if isinstance(model, DecoderOnly):
        # Its one stack runs over both.
        return np.asarray(one_sequence(jnp.asarray(source), jnp.asarray(target))[1])
    if stack == "decoder":
        return np.asarray(seen) if kind == "keys" and block != "attention" else target != PAD
    return (source != PAD) & (model.config.document.sentence_ends | (source != EOS))


def of_document(
    translator: Translator, document: Document, budget: float | Sequence[float] | None = None
) -> dict[str, Any]:
    """What each layer of the encoder of a document model looks at, at a budget of the model, its largest if None.

    Returns:
      `sentences`, the pieces of each sentence, and `layers`, for each layer a dictionary by the name of a block:
      `weights` [N, H, M, M] of attention within sentences (or [H, L, L] over the L = N M words of the document,
      [H, L, N] over its sentences), and `context_weights` [H, L, N] of additional heads over sentences; or, for
      conditional attention, `index`, `relevance` and `valid` [H, N, M, t]:
      which sentences each head selects for word m of sentence n, best first. In a tree also `path_node` and
      `path_score` [H, N, M, t, levels], from the root to the sentence, and for all nodes, one level behind the other
      from the root, whether a level keeps them and their own scores, `tree_kept` and `tree_score` [H, N, M, nodes].

    Raises:
      ConfigError: for a model of sentences, for a document that is cut when it is translated, and for a budget that it
        was not trained for.
    """
    if not translator.model.config.is_document:
        raise ConfigError("this is a model of sentences: ask for the attention of a line, not of a Document")
    place = told(translator.model.config, budget)(1)
    most = translator.max_sentences
    if len(document) > most:
        raise ConfigError(
            f"a document of {len(document)} sentences is cut when it is translated, into parts of up to {most} that are "
            f"read each by itself: ask for those, such as Document((document.sentences[:{most}],))"
        )
    text = Text.of_documents([document])
    source = TokenArray.from_lists(translator.vocabularies.source.encode(list(text.sentences)))
    ids = source.padded(np.arange(len(source)), int(source.lengths.max()))
    paragraphs = np.repeat(np.arange(len(document.paragraphs)), [len(part) for part in document.paragraphs])

    def capture(model, source, paragraphs, budget):
        aux = model.encode(source, capture=True, paragraphs=paragraphs, budget=budget)[1]
        return aux.maps["encoder"]

    # As the model reads it, which may be cut elsewhere.
    read = translator.boundaries({"source": ids[None], "paragraph": paragraphs.astype(np.int32)[None]})
    (ids,) = read["source"]
    batch = jnp.asarray(read["source"]), jnp.asarray(read["paragraph"])
    look = jax.jit(partial(translator.model.apply, method=capture))
    layers = look({"params": translator.params}, *batch, place)
    pieces = translator.vocabularies.source.pieces
    return {
        "sentences": [[pieces[i] for i in row[row > 0]] for row in ids],
        "layers": [
            {name: _plain(found, ids.shape) for name, found in layer.items() if jax.tree.leaves(found)}
            for layer in layers
        ],
    }


def _plain(found: Any, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """What a block captured for one document [N, M], as arrays by name."""
    if not isinstance(found, Selection):
        leaves = jax.tree.leaves(found)
        names = ("weights", "context_weights")
        return {name: np.asarray(leaf)[0] for name, leaf in zip(names, leaves)}
    arrays = {"index": found.index, "relevance": found.relevance, "valid": found.valid}
    if isinstance(found, TracedSelection):
        arrays |= {"path_node": found.path.node, "path_score": found.path.score}
        arrays |= {"tree_kept": found.kept, "tree_score": found.scores}
    return {name: _by_word(np.asarray(array)[0], shape) for name, array in arrays.items()}


def _by_word(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """[H, N M, ...] as [H, N, M, ...]."""
    return array.reshape(array.shape[0], *shape, *array.shape[2:])


def draw_selection(attention: dict[str, Any], sentence: int, layer: int = -1, head: int | None = None):
    """A figure of the sentences that the words of one sentence select, coloured by relevance.

    Args:
      attention: of `of_document`.
      sentence: whose words are shown, from 0.
      layer: of the encoder, one with conditional attention.
      head: one head; all side by side if None.

    Returns:
      the matplotlib figure.

    Raises:
      ValueError: if the layer selects nothing.
    """
    from matplotlib import pyplot as plt

    selected = attention["layers"][layer].get("attention", {})
    if "index" not in selected:
        raise ValueError(f"layer {layer} selects no sentences: there is nothing to draw")
    words, count = attention["sentences"][sentence], len(attention["sentences"])
    heads = range(len(selected["index"])) if head is None else [head]
    index, relevance, valid = (
        selected[name][list(heads), sentence, : len(words)] for name in ("index", "relevance", "valid")
    )
    grid = np.full((len(heads), len(words), count), np.nan)
    h, w, t = np.nonzero(valid)
    grid[h, w, index[h, w, t]] = relevance[h, w, t]
    columns = min(len(heads), 2)
    rows = -(-len(heads) // columns)
    size = (2.0 + (0.6 + 0.27 * count) * columns, 0.6 + (0.7 + 0.27 * len(words)) * rows)
    figure, axes = plt.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False, figsize=size, layout="constrained"
    )
    for axis in axes.flat[len(heads) :]:
        axis.remove()
    edges = np.arange(count + 1) + 0.5, np.arange(len(words) + 1)
    for axis, number, values in zip(axes.flat, heads, grid):
        axis.axvspan(sentence + 0.5, sentence + 1.5, color="0.9", zorder=0)
        image = axis.pcolormesh(
            *edges, np.ma.masked_invalid(values), cmap="viridis", edgecolors="white", linewidth=1,
            vmin=np.nanmin(grid), vmax=np.nanmax(grid),
        )  # fmt: skip
        axis.set_title(f"head {number + 1}", fontsize="small")
        axis.set_xticks(range(1, count + 1))
        axis.tick_params(length=0, labelsize="x-small")
    axes[0, 0].set_yticks(edges[1][:-1] + 0.5, [word.lstrip("\u2581") for word in words])
    axes[0, 0].invert_yaxis()
    figure.supxlabel("sentence of the document; its own is shaded", fontsize="small")
    figure.colorbar(image, ax=list(axes.flat[: len(heads)]), label="relevance", shrink=0.8)
    figure.suptitle(f"What the words of sentence {sentence + 1} select", fontsize="medium")
    return figure


def draw_path(attention: dict[str, Any], sentence: int, word: int, layer: int = -1, head: int | None = None):
    """A figure of the tree over the sentences and of what one word keeps of it, the root on top.

    Nodes that their level keeps are coloured by their score, which stands beside them, and joined from the root; the
    others are dots. A square is the only child of its parent, hence its copy, with its score.

    Args:
      attention: of `of_document`.
      sentence: of the word, from 0; it is shaded.
      word: its place in the sentence.
      layer: of the encoder, one with hierarchical attention.
      head: one head; all, one below the other, if None.

    Returns:
      the matplotlib figure.

    Raises:
      ValueError: if the layer searches no tree.
    """
    from matplotlib import pyplot as plt

    found = attention["layers"][layer].get("attention", {})
    if "tree_kept" not in found:
        raise ValueError(f"layer {layer} searches no tree: it has no path to draw")
    sizes = level_sizes(len(attention["sentences"]))[::-1]
    heads = range(len(found["tree_kept"])) if head is None else [head]
    kept, score = (found[name][list(heads), sentence, word] for name in ("tree_kept", "tree_score"))
    x, depth, parent, copies = _tree_layout(sizes)
    size = 1.5 + max(0.42 * sizes[-1], 3.0), 0.7 + (0.5 + 0.55 * len(sizes)) * len(heads)
    figure, axes = plt.subplots(len(heads), sharex=True, squeeze=False, figsize=size, layout="constrained")
    shown = {"vmin": score[kept].min(), "vmax": score[kept].max(), "cmap": "viridis", "zorder": 3}
    for axis, number, on, values in zip(axes.flat, heads, kept, score):
        axis.axvspan(sentence + 0.5, sentence + 1.5, color="0.9", zorder=0)
        for node in range(1, len(x)):
            ends = [parent[node], node]
            style = {"color": "0.2", "linewidth": 1.5} if on[node] else {"color": "0.85", "linewidth": 0.7}
            axis.plot(x[ends], depth[ends], zorder=1, **style)
        axis.scatter(x[~on], depth[~on], s=8, color="0.75", zorder=2, label="not kept")
        for mask, marker, label in ((on & ~copies, "o", "kept"), (on & copies, "s", "kept copies")):
            image = axis.scatter(
                x[mask], depth[mask], s=60, c=values[mask], marker=marker, label=label, **shown
            )
        for node in np.flatnonzero(on):
            axis.annotate(
                f"{values[node]:+.1f}", (x[node], depth[node]), (6, 5), textcoords="offset points",
                fontsize="xx-small", zorder=4,
            )  # fmt: skip
        axis.set_title(f"head {number + 1}", fontsize="small")
        axis.set(xticks=range(1, sizes[-1] + 1), yticks=[], ylim=(len(sizes) - 0.5, -0.6))
        axis.tick_params(length=0, labelsize="x-small")
    name = attention["sentences"][sentence][word].lstrip("\u2581")
    figure.supxlabel("sentence of the document; its own is shaded", fontsize="small")
    figure.colorbar(image, ax=list(axes.flat), label="score of a node", shrink=0.8)
    figure.suptitle(f"What {name!r} of sentence {sentence + 1} keeps of the tree", fontsize="medium")
    return figure


def _tree_layout(sizes: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Of all nodes, from the root, levels of these sizes: x, above the sentences from 1; depth; parent; only children."""
    levels = [np.arange(1.0, sizes[-1] + 1)]
    for above in sizes[-2::-1]:
        below = levels[0]
        # An only child stands in for the second one.
        levels.insert(0, (below[::2] + np.append(below[1::2], below[-1:])[:above]) / 2)
    starts = np.cumsum([0, *sizes])
    depth = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(starts[-1]) - starts[depth]
    parent = np.where(depth > 0, starts[depth - 1] + place // 2, 0)
    copies = (depth > 0) & (place % 2 == 0) & (place + 1 == np.asarray(sizes)[depth])
    return np.concatenate(levels), depth, parent, copies
