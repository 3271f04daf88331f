"""The perplexity of a text to which only the frequencies of its symbols are known: what a model must fall below."""

import numpy as np

from flaxnmt.typing import Int


def unigram_perplexity(seen: Int[np.ndarray, "V"], found: Int[np.ndarray, "V"]) -> float:
    """exp(-sum_v n_v log p_v / sum_v n_v), with p_v the share of symbol v in another text, each counted once more.

    Args:
      seen: how often each symbol stands in the text that is known.
      found: n_v, how often it stands in the one that is judged.
    """
    known = np.asarray(seen, np.float64) + 1
    return float(np.exp(-(found * np.log(known / known.sum())).sum() / found.sum()))
