"""TFDS builders for the tests, in a package directory because TFDS looks for a builder's files there."""
