"""What stands in the place of attention in an encoder, and how several encoders become one.

An `EncoderLayer` is blocks in order, of which attention or what stands in its place is the first. An `Encoder` is a
stack of layers, `Branches` are encoders over one embedded source and a combination of their outputs. Recurrence,
convolution, transform and expansion are `SubLayer`s whose shared part is over the rows themselves; norms and skips
are those of the block around them. `config.encoder_branches` has the kind of every layer. The rules `BRANCHES_APART`
put encoders side by side on the `model` axis: what they need is gathered before and gradients are added up after, so
that no collective stands where devices differ.
"""
