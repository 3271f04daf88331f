"""Planning and launching on TPU slices; stands on `experiments` and `flaxnmt`.

A `Job` is checked whole before anything is asked for, also the flags of the training. Every command is an argument
list; a dry run prints it from the same call that would run it. The training travels as data and is never evaluated.
Each machine says in the bucket how its process ended; `decide(resource, spot, progress)` is the state machine,
without side effects, and `Watcher` looks, decides and acts. A restart that failed half-way is finished before
anything else is decided. On GKE the JobSet does that.
"""
