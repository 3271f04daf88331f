"""Attention: within a sentence, over a document, over the sentences that matter; and what distances add to it.

A source is sentences [B, S] or documents [B, N, M]; the rank says which, and every layer takes any leading axes. So
attention within the sentence, the feed-forward and the whole decoder are those of a sentence model, with its
parameter names: `--init-from` a sentence run fills all of them. What looks across sentences (`DocumentAttention`,
`ContextAttention`, `ConditionalAttention`, `HierarchicalAttention`) has keys with a leading [B] and takes rows of any
shape in the order of their documents. Targets [B, N, T] are decoded in parallel, each sentence a row of the search,
or each of those that are wanted; a sentence that is context only has a target of zeros. Batches ask `Units` for sizes
and arrays: sentence pairs, or chunks of documents. A `Selection` (index, relevance, valid) is all that attention over
selected sentences knows of how they were found, flat or in a tree; small documents take the dense form, large ones
sort words by sentence.
"""
