"""Counted operations of attention over documents grow as the paper's table 1 says."""

import pytest

from experiments.benchmarks.complexity import Options, measure, operations


def test_exponents_are_those_of_the_formulas():
    found = [(row["exponent_sentences"], row["exponent_words"]) for row in measure(Options())]
    sentence, document, context, conditional, hierarchical, encodings = found
    assert sentence == pytest.approx((1, 2)) and document == pytest.approx((2, 2))
    assert context == pytest.approx((2, 1), abs=0.01) and encodings == pytest.approx((1, 1))
    # Sums of a term in n^2 m, or n m log n, and one in n m^2 lie between the exponents of both.
    assert 1.5 < conditional[0] < 2 and 1 < conditional[1] < 2
    assert 1 < hierarchical[0] < 1.1 and 1 < hierarchical[1] < 2


def test_operations_are_the_products_of_the_formula():
    options = Options(heads=2, d_model=8)
    assert operations("sentence", 3, 5, options) == 4 * 3 * 5 * 5 * 8
    assert operations("document", 3, 5, options) == 4 * 15 * 15 * 8
