"""Markdown tables as tests compare them."""

import re


def narrow(text: str) -> list[str]:
    """The lines of a text, with cells of its tables as wide as what they say."""
    return [re.sub(" +(?= \\|)", "", re.sub("-{3,}", "---", line)) for line in text.splitlines()]
