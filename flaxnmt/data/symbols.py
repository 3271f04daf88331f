"""Symbols with a meaning of their own, which no text is ever read as; they stand behind the four special ones."""

MASK, CLS, SEP = "[MASK]", "[CLS]", "[SEP]"
ENCODER_SYMBOLS = (MASK, CLS, SEP)
"""Of every vocabulary of an encoder alone, in the order of their ids."""
