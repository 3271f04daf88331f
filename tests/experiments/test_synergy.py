"""Synergy and growth, on scores for which both can be worked out by hand."""

from itertools import combinations

from experiments import encoder_sets
from experiments.sweeps import encoders as sweep_of_encoders
from experiments.synergy import canonical, growth, mutual, synergy, synergy_matrix

NAMES = ["b", "l", "s"]
SCORES = {
    canonical(encoders): score
    for encoders, score in {
        ("b",): 30.0, ("l",): 27.0, ("s",): 28.0, ("b", "b"): 29.5, ("l", "l"): 27.5, ("s", "s"): 28.0,
        ("b", "l"): 30.5, ("s", "b"): 30.25, ("l", "s"): 29.5,
    }.items()
}  # fmt: skip


def test_synergy_is_what_a_pair_gains_over_its_first():
    assert synergy(SCORES, "b", "l") == 0.5 and synergy(SCORES, "l", "b") == 3.5
    assert synergy(SCORES, "b", "l", "duplicated") == 1.0 and synergy(SCORES, "l", "b", "duplicated") == 3.0
    assert mutual(SCORES, "b", "l") == mutual(SCORES, "l", "b") == 4.0
    assert synergy_matrix(SCORES, NAMES) == [[None, 0.5, 0.25], [3.5, None, 2.5], [2.25, 1.5, None]]


def test_growth_adds_the_encoder_with_the_best_partner():
    # Of b, l, s: b and l 4.0, b and s 2.5, l and s 4.0, the first of which counts; b gains less than l.
    assert growth(SCORES, NAMES) == ["b", "l", "s"]
    # Twice over: 4.0, 2.0 and 3.5.
    assert growth(SCORES, NAMES, "duplicated") == ["b", "l", "s"]
    # A pair without the first: s gains 3.5 from l and l 4.5 from s.
    assert growth(SCORES | {("l", "s"): 31.5}, NAMES) == ["s", "l", "b"]


def test_growth_asks_for_the_best_partner_among_those_that_are_in():
    names = [*NAMES, "c"]
    pairs = {("b", "c"): 31.0, ("c", "l"): 28.0, ("c", "s"): 31.0}
    # c with b 31 + 31 - 30 - 29 = 3, with l 0, with s 5: of all pairs the best, and then l by its 4.0 with s, not b.
    scores = SCORES | {("c",): 29.0} | pairs | {("b", "l"): 30.0}
    assert growth(scores, names) == ["c", "s", "l", "b"]


def test_the_pairs_of_the_paper_grow_in_its_order():
    base, expansion, lstm, convolution, fourier = encoder_sets.PAPER
    # The three sums that are published (Hu et al. 2023, section 5.3), less for the others, Base and FNet the worst.
    sums = {(base, expansion): 2.93, (base, lstm): 2.10, (lstm, convolution): 1.38, (base, fourier): -2.0}
    alone = {base: 31.8, expansion: 30.1, lstm: 29.9, convolution: 29.0, fourier: 28.0}
    scores = {(encoder,): score for encoder, score in alone.items()}
    for one, other in combinations(encoder_sets.PAPER, 2):
        scores[canonical((one, other))] = (alone[one] + alone[other] + sums.get((one, other), -1.0)) / 2
    assert growth(scores, encoder_sets.PAPER) == list(encoder_sets.PAPER)


def test_what_is_not_measured_is_missing():
    scores = {encoders: score for encoders, score in SCORES.items() if encoders != ("b", "s")}
    assert synergy(scores, "b", "s") is None and mutual(scores, "s", "b") is None
    assert growth(scores, NAMES) is None
    assert synergy_matrix(scores, NAMES)[0] == [None, 0.5, None]


def rows(scores, seeds=(1, 2)):
    """Rows of a ledger with these development scores, which the test set contradicts."""
    return [
        {"corpus": "multi30k_en_de", "pairs": encoder_sets.ALL, "variant": "sum", "seed": seed,
         "encoders": " ".join(encoders), "dev_bleu": score + 0.1 * seed, "bleu": -score}
        for encoders, score in scores.items()
        for seed in seeds
    ]  # fmt: skip


def followed(scores, **seeds):
    """Encoders on Multi30k of the trials of one seed that follow, and those on each other corpus and size."""
    found = {}
    for trial in sweep_of_encoders.following(rows(scores, **seeds)):
        settings = dict(trial.settings)
        if trial.seed == 2:
            corpus = settings["corpus"], settings["pairs"]
            found.setdefault(corpus, []).append(settings["encoders"].split())
    return found.pop(("multi30k_en_de", encoder_sets.ALL), []), found


def test_the_sweep_grows_by_what_it_measured_once_all_pairs_are_there():
    paper = encoder_sets.PARTNERS
    base, expansion, lstm, convolution, fourier = paper
    scores = {(encoder,): 20.0 for encoder in paper}
    # Base and FNet are the best pair, and everything else follows in the order of the list.
    scores |= {pair: 21.0 - 0.1 * paper.index(pair[1]) for pair in encoder_sets.COUPLES}
    scores[base, fourier] = 25.0
    partial = {encoders: score for encoders, score in scores.items() if encoders != (lstm, convolution)}
    assert followed(partial) == ([], {})
    assert followed(scores, seeds=(1,)) == ([], {})
    single = [[base, fourier], [base, expansion, fourier], [base, expansion, lstm, fourier], [*paper]]
    assert followed(scores) == (single, {})
    # ConvS2S twice is worth less than anything, so that by the other reading all gain most from it.
    scores |= {(encoder, encoder): 20.0 for encoder in paper} | {(convolution, convolution): 1.0}
    twice = [
        [base, convolution],
        [base, expansion, convolution],
        [base, expansion, lstm, convolution],
    ]
    assert followed(scores) == ([*single, *twice], {})


def test_the_best_sum_and_the_best_alone_go_to_other_corpora_once_every_seed_has_all_of_them():
    paper, partners = encoder_sets.PAPER, encoder_sets.PARTNERS
    base, expansion, lstm, convolution, fourier = partners
    scores = {(encoder,): 30.0 for encoder in partners} | {(encoder, encoder): 31.0 for encoder in partners}
    scores |= dict.fromkeys(encoder_sets.DEEPER, 20.0)
    scores |= {pair: 21.0 - 0.1 * partners.index(pair[1]) for pair in encoder_sets.COUPLES}
    # In the order of the paper by either reading.
    scores |= dict.fromkeys((*encoder_sets.GROWN[2:], *encoder_sets.SHALLOWER[2:]), 22.0)
    for missing in (tuple(paper), partners, (base, "lstm:18")):
        assert followed({key: scores[key] for key in scores if key != missing})[1] == {}
    partial = [row for row in rows(scores) if (row["encoders"], row["seed"]) != (" ".join(paper), 1)]
    assert all(
        dict(trial.settings)["corpus"] == "multi30k_en_de" for trial in sweep_of_encoders.following(partial)
    )
    # Neither one encoder nor one twice is a combination; a pair that no growth passes through is one.
    scores[expansion, lstm] = 25.0
    scores[fourier,] = 30.5
    order = encoder_sets.measured_order(rows(scores))
    scores |= dict.fromkeys(map(tuple, encoder_sets.grown(order)[2:]), 22.0)
    whole, found = followed(scores)
    smaller = {("multi30k_en_de", pairs): [[base], [fourier]] for pairs in encoder_sets.PAIRS[:-1]}
    # Beside the best sum its own parts.
    expected = [[base], [expansion, lstm], [fourier], [expansion], [lstm]]
    others = {(corpus, encoder_sets.SIZES[corpus]): expected for corpus in encoder_sets.OTHERS}
    assert found == others | smaller and whole[-5:] == expected


def test_a_sweep_that_goes_on_behind_its_pairs_has_every_baseline_first():
    loaded = sweep_of_encoders.sweep
    found = [
        {"key": trial.key, "name": trial.name, "seed": trial.seed, "dev_bleu": 20.0 + place}
        | dict(trial.settings)
        for place, trial in enumerate(loaded.trials)
    ]
    there = {trial.directory for trial in loaded.trials}
    left = [trial for trial in loaded.all(found) if trial.directory not in there]
    # What follows from the pairs is among them.
    assert len(left) >= len({trial.directory for trial in loaded.later} - there) + 4
    for trial in left:
        assert trial.baseline is None or trial.baseline in there, trial.directory
        there.add(trial.directory)


def test_other_ways_to_combine_are_compared_with_the_sum():
    found = {trial.name: trial.against for trial in sweep_of_encoders.sweep.all([])}
    base, dual = map(encoder_sets.trial_name, encoder_sets.GROWN[:2])
    assert found[base] is None and found[dual] == found[f"{base}-budgets"] == base
    assert found[f"{dual}-weighted"] == found[f"{dual}-gated"] == found[f"{dual}-budgets"] == dual
    assert found[f"{dual}-norm-of-the-sum"] == found[f"{dual}-decided-budgets"] == dual


def test_synergies_of_the_sweep_are_written_in_both_readings():
    (shown,) = (table for table in sweep_of_encoders.sweep.tables if "Synergy" in table.title)
    base, expansion, *others = encoder_sets.PAPER
    measured = {(base,): 20.0, (expansion,): 18.0, (base, base): 20.5, (base, expansion): 21.0}
    found = [row | {"bleu": row["dev_bleu"]} for row in rows(measured)]
    head, _, pair = shown.lines(found)
    assert [cell.strip() for cell in pair.split("|")[3:-1]] == ["+1.00", "+3.00", "+4.00", "+0.50", "-", "-"]
    assert head.count("single") == head.count("duplicated") == 3
    assert shown.lines([]) == []
