"""From files to batches.

A batch is a function of (seed, step). Within an epoch every pair occurs once; order comes from a keyed permutation of
(seed, epoch, bucket), so that any step is found without its predecessors. The global batch is the same for any number
of processes, each of which loads the rows that its devices own (`owned_rows`). A resumed run needs no saved data
position.
"""
