"""Ids of the symbols that every vocabulary begins with."""

PAD, UNK, BOS, EOS = range(4)
