"""What models are stacked of: sub-layers, and the blocks and contexts around them.

A `SubLayer` has `keys(memory, context)`, the part that all rows share (keys and values, None for a feed-forward), and
`rows(x, shared, context)`, the part for each row, which leaves out rows that are not wanted if `rowwise`. Norm, skip, dropout
belong to the `Block` around it. A `Context` says what a layer knows of its rows: masks, positions, `visible`,
`causal`, `deterministic`, `capture`. Kinds are composed, not branched: the configuration makes the sub-layer object
(`models/build.py`), no layer asks for a name. Captured attention maps are returned in `Aux`, never sown. A `Stack`
runs layers in turn or scans one over stacked parameters.
"""
