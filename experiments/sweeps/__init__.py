"""Sweeps: each module says which trials it has and what is measured of each."""
