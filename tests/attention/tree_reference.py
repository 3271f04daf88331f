"""ConstructBT, TraverseTree and the attention above them in float64 NumPy, one node, word and head at a time.

From the text of Trankova et al. 2024, section 3.3, without JAX. The trees are linked nodes, so that nothing of
the arithmetic of levels is shared with what is tested.
"""

import numpy as np
import reference


class Node:
    """A node of the reference: its children, and its place in the arrays."""

    def __init__(self, level, index, children=()):
        self.level, self.index, self.children = level, index, children
        self.is_copy = False
        if len(children) == 1:
            children[0].is_copy = True


def make_tree(mask):
    """The root over the sentences that are there; None where there is none."""
    nodes = [Node(0, i) if there else None for i, there in enumerate(mask)]
    while len(nodes) > 1:
        pairs = [nodes[i : i + 2] for i in range(0, len(nodes), 2)]
        nodes = [[child for child in pair if child] for pair in pairs]
        level = 1 + max((pair[0].level for pair in nodes if pair), default=0)
        nodes = [Node(level, i, pair) if pair else None for i, pair in enumerate(nodes)]
    root = nodes[0]
    # What stands above the only node of a level is there because of padding.
    while root and len(root.children) == 1:
        (root,) = root.children
        root.is_copy = False
    return root


def traverse(scores, mask, t, by, count_copies, own=None):
    """Values of the leaves for one word, -inf where dropped; scores[level][index].

    Each level keeps t nodes, and the one above the sentence `own`.
    """
    values, root = np.full(len(mask), -np.inf), make_tree(mask)
    level = [(root, 0.0)] if root else []
    while level:
        scored = []
        for node, above in level:
            score = scores[node.level][node.index]
            total = above + (score if count_copies or not node.is_copy else 0.0)
            key = score if by == "raw" else total
            scored.append((-key, node.index, node, total))
        scored.sort(key=lambda entry: entry[:2])
        mine = [entry for entry in scored if own is not None and own // 2 ** entry[2].level == entry[1]]
        kept = mine + [entry for entry in scored if entry not in mine][:t]
        for _, index, node, total in kept:
            if node.level == 0:
                values[index] = total
        level = sorted(
            ((child, total) for *_, n, total in kept for child in n.children), key=lambda c: c[0].index
        )
    return values


def source2token(params, x):
    """Eq. 2 of the words [M, D] that are there."""
    y = reference.attention(params["query"][None], x @ params["key"], x @ params["value"])
    return y[0] @ params["out"]


def encode(node, sentences, merge):
    """Vectors of a node and all below it, by (level, index); merge is a function of [2, D]."""
    if not node.children:
        return {(node.level, node.index): sentences[node.index]}
    vectors = {}
    for child in node.children:
        vectors |= encode(child, sentences, merge)
    below = [vectors[child.level, child.index] for child in node.children]
    vectors[node.level, node.index] = merge(np.stack(below)) if len(below) == 2 else below[0]
    return vectors


def attend(query, key, value, bias):
    """softmax(q k^T / sqrt(K) + bias) v of one word over [N, M, K], for a bias a sentence, -inf where not kept."""
    scores = [
        key[n] @ query / np.sqrt(len(query)) + bias[n] for n in range(len(bias)) if np.isfinite(bias[n])
    ]
    values = [value[n] for n in range(len(bias)) if np.isfinite(bias[n])]
    return reference.softmax(np.concatenate(scores)) @ np.concatenate(values)


def hierarchical_attention(params, document, t, by, count_copies):
    """Outputs for one document, a list of sentences [M, D] of any lengths."""
    encodings = np.stack([source2token(params["sentence_encoder"], words) for words in document])
    root = make_tree([True] * len(document))
    nodes = encode(root, encodings, lambda pair: source2token(params["merge"], pair))
    outputs = []
    for words in document:
        y = np.zeros(words.shape)
        for h in range(params["query"].shape[1]):
            project = {name: params[name][:, h] for name in params if getattr(params[name], "ndim", 0) == 3}
            key = [other @ project["key"] for other in document]
            value = [other @ project["value"] for other in document]
            for i, word in enumerate(words):
                selector = word @ project["selector_query"]
                scores = {
                    at: selector @ (x @ project["selector_key"]) / np.sqrt(len(selector))
                    for at, x in nodes.items()
                }
                levels = [
                    [scores.get((level, i)) for i in range(len(document))] for level in range(root.level + 1)
                ]
                bias = traverse(levels, [True] * len(document), t, by, count_copies)
                y[i] += attend(word @ project["query"], key, value, bias) @ params["out"][h]
        outputs.append(y)
    return outputs
