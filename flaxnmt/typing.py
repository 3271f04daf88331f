"""The shape vocabulary: jaxtyping annotations over one set of letters.

B batch, N sentences in a document, M words in a sentence, S source length, T target length, D model,
H heads, K head size, F feed-forward, V vocabulary; Q and L stand for query and key positions where
an attention does not care whether they are S or T.
"""

from typing import Any

from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt

Params = Any
PyTree = Any
Count = int | Array
"""A number of rows, or one for each example; FLOPs follow from either."""

__all__ = ["Array", "Bool", "Count", "Float", "Int", "PRNGKeyArray", "Params", "PyTree", "UInt"]
