"""Models, and the configurations and parts that they are built of.

An `EncoderOnly` is an encoder with a head. A `DecoderOnly` has the methods of a `Seq2Seq`: its `encode` hands the
source on, its `decode` runs over source, delimiter and target, its cache has the keys of the source before those of
the hypotheses; so objective, search, scoring and commands know nothing of it. Packed sequences are columns of the
token stream, and `packed` says which document each token is of; to encoders that are no attention a sequence is one
document. What attention asks of positions is an `AttentionPositions` (queries, keys, scores, outputs), for any
position ids; encodings of several levels belong to embeddings.
"""
