"""Sub-layers behind gates, and budgets (Bapna et al. 2020).

A `GatedBlock` stands where a `Block` stands and holds any sub-layers; no sub-layer knows of gates. It tells them
through the `Context` which rows are wanted (`active`) and what keys and values are worth (`key_gate`); `on_active`
computes a function of rows for sixteenths of them, under jit. A search on a mesh that divides rows alone runs in
`each_alone`: every device skips and stops by its own rows and sends nothing meanwhile. Gates are soft where the
context is not deterministic, decisions elsewhere; `skip`, set in decoding, leaves out what they decide against, and
without it everything is computed and multiplied, which is the reference. To a search, hypotheses that have ended are
padding: their gates are closed, and they have no logits. A block reports `Use` (FLOPs let through, of how many), a
stack their sum in `Aux`; the objective draws a budget for each example and adds the loss. A budget is a place in
`config.budgets`, the rows of the table of control symbols.
"""
