"""Training loops, configurations, sweeps and benchmarks over the flaxnmt library."""
