"""Training loops, configurations, sweeps and benchmarks over the flaxnmt library.

`experiments.train` with `--processes` is a parent without JAX. It meets the others by plain sockets, starts
`experiments.process` as its child and keeps the connections: one that closes is a lost process, and every parent then
ends its child, says one line and exits with 43. Inside, `preflight` compares what the processes stand on, in two
rounds of `exchange`; whatever could hang stands in a `time_limit`. JAX owns SIGTERM there, and agrees on the step to
save after. A process that fails leaves without JAX's barrier, at which it would wait for the others.
"""
