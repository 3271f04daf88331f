import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import budgets, common, document_times, ours, training
from experiments.benchmarks.peers.sizes import EOS, PAD, SIZES
from flaxnmt.errors import ConfigError, RunError
from flaxnmt.layers.segments import segments_here
from flaxnmt.models.config import PRESETS
from flaxnmt.models.flops import forward_flops
from flaxnmt.training.meters import CompilationCounter
from flaxnmt.training.objective import translation_objective

ROOT = Path(__file__).parents[2]
TINY = SIZES["tiny"]
SHAPES = ((8, 6, 6), (4, 9, 11))


def test_sizes_are_those_of_the_presets():
    for name in ("small", "base"):
        size, preset = SIZES[name], PRESETS[name]
        for stack in (preset.encoder, preset.decoder):
            assert (size.layers, size.heads, size.feed_forward) == (
                stack.layers,
                stack.attention.heads,
                stack.feed_forward,
            )
        assert size.d_model == preset.d_model


def test_settings_leave_out_paths_and_can_be_written(tmp_path):
    settings = common.settings(budgets.Options(run=(tmp_path, tmp_path), results=tmp_path, rounds=2))
    assert settings["rounds"] == 2 and not {"run", "results"} & set(settings)
    common.write_results("budgets", "Budgets", "text", {"options": settings}, tmp_path)
    (line,) = (tmp_path / "benchmarks.jsonl").read_text().splitlines()
    assert json.loads(line)["options"]["rounds"] == 2


def test_random_ids_end_with_eos_and_have_the_lengths_that_were_asked_for():
    ids = common.random_ids(50, 20, TINY, seed=3, fill=0.5)
    lengths = (ids != PAD).sum(1)
    assert ids.shape == (50, 20) and ids.dtype == np.int32
    assert lengths.max() == 20 and 10 <= lengths.min() < 14
    assert (ids[np.arange(50), lengths - 1] == EOS).all()
    assert ((ids == EOS).sum(1) == 1).all() and ids.max() < TINY.vocabulary
    np.testing.assert_array_equal(ids, common.random_ids(50, 20, TINY, seed=3, fill=0.5))


def test_speeds_are_medians_over_passes_and_ratios_are_flaxnmt_over_the_other():
    slow = [
        {
            "seconds": [1.0, 3.0, 2.0, 2.0],
            "tokens": [10, 30, 10, 10],
            "parameters": 5,
            "versions": {"marian": "9"},
        }
    ] * 2
    fast = [{"seconds": [0.5, 0.5, 9.0], "tokens": [10, 30, 10], "parameters": 6}] * 3
    assert common.speeds(slow, cycle=2) == [10.0, 5.0, 10.0, 5.0]
    row = common.compare({"flaxnmt": fast, "huggingface": slow}, cycle=2)
    assert row["tokens_per_second"] == {"flaxnmt": 40.0, "huggingface": 7.5}
    assert row["range"]["huggingface"] == [5.0, 10.0]
    assert row["ratio"] == {"flaxnmt": 1.0, "huggingface": 40 / 7.5}
    text = common.compare_table(row, training.NAMES).splitlines()
    assert text[2] == "| flaxnmt | this commit | 6 | 40 | 40 to 40 | 1 |"
    assert text[3] == "| Hugging Face MarianMTModel | marian 9 | 5 | 7.5 | 5 to 10 | 5.33 |"


def test_rounds_take_turns_and_every_second_one_runs_backwards():
    order = []
    systems = {name: lambda name=name: order.append(name) or {} for name in "abc"}
    assert [len(results) for results in common.interleave(systems, rounds=3).values()] == [3, 3, 3]
    assert "".join(order) == "abccbaabc"


def matrix_product_flops(jaxpr) -> int:
    """Twice the multiplications of all dot_generals, also in the jaxprs inside; one branch of several runs."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            # A row of ones times rows is the sum of the rows, which is no work that a model asks for.
            total += 0 if left[:1] == (1,) else 2 * prod(out) * prod(left[axis] for axis in contracted)
        if equation.primitive.name == "cond":
            total += max(matrix_product_flops(branch.jaxpr) for branch in equation.params["branches"])
            continue
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                total += matrix_product_flops(inner)
    return total


def test_flops_equal_the_matrix_products_of_the_traced_step():
    batch = jax.tree.map(jnp.asarray, training.make_batches(TINY, ((4, 9, 11),), 1.0)[0])
    model = ours.make_model(TINY)
    objective = translation_objective(model, 0.1)
    params = ours.init_params(model)
    loss = jax.grad(lambda params: objective(params, batch, jax.random.key(0))["loss"])
    traced = matrix_product_flops(jax.make_jaxpr(loss)(params).jaxpr)
    assert traced == 3 * forward_flops(model.config, TINY.vocabulary, (4, 9), (4, 11))


@pytest.mark.slow
def test_our_rounds_compile_before_they_are_timed_and_learn():
    batches = training.make_batches(TINY, SHAPES[:1], 0.75)
    round_of = training.run_ours(ours.make_training(TINY, batches), batches)
    with CompilationCounter() as compilations:
        result = round_of(cycles=200)
    assert compilations.total == 0
    assert result["tokens"] == [int((batches[0]["target"] != PAD).sum())] * 200
    assert len(result["seconds"]) == 200 and min(result["seconds"]) > 0
    assert np.mean(result["losses"][-20:]) < np.mean(result["losses"][:20]) - 0.1


@pytest.mark.slow
def test_decoding_runs_from_the_command_line_and_writes_its_row(tmp_path):
    options = "--sizes tiny --peers --rounds 1 --repetitions 2 --sentences 5 --target-length 7 --cores 1"
    command = [sys.executable, "-m", "experiments.benchmarks.decoding", *options.split()]
    subprocess.run([*command, "--results", str(tmp_path)], cwd=ROOT, check=True)
    text = (tmp_path / "decoding_speed.md").read_text()
    assert "Lengths produced: flaxnmt 7. Compilations after warm-up: 0." in text
    row = json.loads((tmp_path / "benchmarks.jsonl").read_text())
    assert row["benchmark"] == "decoding_speed" and row["machine"]["cores"] == 1
    assert row["sizes"][0]["lengths"] == {"flaxnmt": [7]}
    caches = [(cache["room"], cache["segments"]) for cache in row["sizes"][0]["caches"]]
    assert caches == [(room, segments) for room in (7, 14, 28) for segments in (1, segments_here())]
    assert all(cache["milliseconds"] > 0 for cache in row["sizes"][0]["caches"])
    assert "results" not in row["options"]


@pytest.mark.slow
def test_training_reports_share_of_peak_and_padding():
    options = training.Options(sizes=("tiny",), peers=(), rounds=1, shapes=SHAPES[1:])
    row = training.measure("tiny", options)
    assert 0 < row["peak_share"] < 1
    assert 0 < row["padding"] < 0.25
    assert row["compilations"] == 0
    assert sum(row["profile"].values()) == pytest.approx(1) and row["profile"]["matrix products"] > 0
    assert "Compilations after warm-up: 0." in training.describe(row)
    assert json.loads(json.dumps(row)) == row


def test_peers_that_are_missing_or_fail_say_so(tmp_path):
    with pytest.raises(ConfigError, match="make bench-peers-env"):
        common.Peer(tmp_path / "python", "train_peer.py", {})
    with common.Peer(Path(sys.executable), "train_peer.py", {"--peer": "nobody"}) as peer:
        for _ in range(2):
            with pytest.raises(RunError, match="failed: .*(Error|error)"):
                peer()


def test_a_peer_serves_all_rounds_in_one_process_and_its_own_words_are_no_results(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "PEERS", tmp_path)
    (tmp_path / "counting.py").write_text(
        "import os\nimport sys\n\nsys.path.insert(0, sys.argv[1])\nfrom rounds import serve\n\n"
        "rounds = []\n\n\ndef round_of():\n    print('words of a library')\n    rounds.append(1)\n"
        "    return {'round': len(rounds), 'process': os.getpid()}\n\n\nserve(round_of)\n"
    )
    rounds = ROOT / "experiments" / "benchmarks" / "peers"
    with common.Peer(Path(sys.executable), "counting.py", {rounds: ""}) as peer:
        results = common.interleave({"peer": peer}, 3)["peer"]
    assert [result["round"] for result in results] == [1, 2, 3]
    assert len({result["process"] for result in results}) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(results[0]["process"], 0)


@pytest.mark.slow
def test_peers_have_our_parameters_and_the_biases_of_attention(tmp_path):
    python = ROOT / common.PEERS_PYTHON
    if not python.exists():
        pytest.skip("no peers: make bench-peers-env")
    batches = training.make_batches(TINY, SHAPES, 0.75)
    training.save_batches(tmp_path / "batches.npz", batches)
    np.savez(tmp_path / "source.npz", source=batches[0]["source"])
    attention_biases = 3 * TINY.layers * 4 * TINY.d_model
    expected = ours.parameter_count(ours.init_params(ours.make_model(TINY))) + attention_biases
    for peer in ("joeynmt", "huggingface"):
        arguments = {"--peer": peer, "--size": "tiny", "--data": tmp_path / "batches.npz", "--steps": 4}
        with common.Peer(python, "train_peer.py", arguments) as serve:
            result = serve()
        assert result["parameters"] == expected
        assert result["tokens"] == [int((batch["target"] != PAD).sum()) for batch in batches] * 2
    for peer in ("huggingface", "ctranslate2"):
        arguments = {
            "--peer": peer,
            "--size": "tiny",
            "--data": tmp_path / "source.npz",
            "--target-length": 7,
        }
        with common.Peer(python, "decode_peer.py", arguments) as serve:
            result = serve()
        assert result["parameters"] == expected and result["lengths"] == [7]


def test_times_of_documents_are_of_trials_of_one_seed_beside_the_sentence_model():
    chosen = document_times.trials("document_choices", ("conditional-t-*",))
    assert [trial.name for trial in chosen] == ["sentence", *(f"conditional-t-{t}" for t in (1, 2, 8, 16))]
    assert {trial.seed for trial in chosen} == {1}
    with pytest.raises(ConfigError, match="families is not on the embedded corpus"):
        document_times.trials("families", ("*",))
    with pytest.raises(
        ConfigError, match="no trial of document_choices matches contxt: there are sentence, "
    ):
        document_times.trials("document_choices", ("contxt",))


@pytest.mark.slow
def test_times_of_documents_are_multiples_of_those_of_the_sentence_model(tmp_path):
    options = document_times.Options(
        only=("context",), corpus="discourse:train:300", updates=16, every=2, repetitions=1, rounds=1
    )
    sentence, context = document_times.compare("document_choices", options, tmp_path)
    assert sentence["name"] == "sentence" and context["name"] == "context"
    assert sentence["training"] == sentence["translation"] == 1.0
    assert context["training"] == pytest.approx(sentence["rates"] / context["rates"])
    assert context["translation"] == pytest.approx(context["seconds"] / sentence["seconds"])
    assert "| context |" in document_times.describe("document_choices", [sentence, context])
