"""The parts of a training: objectives, the step, its state, checkpoints, and what is measured meanwhile.

The key of batch i is `fold_in(key(seed), i)`, with i counted over the whole run. Dropout bits are a hash of key and
global index, also where a device is alone (`first_row`), so they are the same on every mesh and after every restart.

Parameters, softmax, logits and loss are float32, the rest `compute_dtype`. The device sums loss and counts tokens;
one division by the target tokens of the whole update follows. Each device computes the loss of its rows in chunks,
never all logits at once, unless a `model` axis divides the vocabulary. A non-finite loss or gradient drops its update
by a select, and is counted.
"""
