"""Plans: what is refused before anything is compiled, and real programs of the TPU compiler where it is installed."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import configs
from flaxnmt.config import MeshConfig
from flaxnmt.errors import ConfigError
from flaxnmt.sharding import Rules, make_mesh
from tpu import plan, plans
from tpu.plan import meshes, parse, shape_of
from tpu.program import Program, _exhausted
from tpu.said import said_of
from tpu.slices import parse_slice
from tpu.work import Work, beam_step, bytes_of, train_step

ROOT = Path(__file__).parents[2]


def planned(command: str, xla_flags: str = "") -> tuple[int, str, str]:
    """Exit code, output, errors of `python -m tpu.plan`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment["XLA_FLAGS"] = xla_flags
    done = subprocess.run(
        [sys.executable, "-m", "tpu.plan", *command.split()],
        capture_output=True, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_shapes_of_batches():
    arguments = parse("transformer_base --slice v5e-16".split())
    assert shape_of(arguments.config, arguments) == ((512, 128), (512, 128))
    arguments = parse("transformer_base --slice v5e-16 --source-length 64 --target-length 32".split())
    assert shape_of(arguments.config, arguments) == ((2048, 64), (2048, 32))
    arguments = parse("transformer_base --slice v5e-16 --decode --source-length 20".split())
    assert shape_of(arguments.config, arguments) == ((64, 32), (64, 58))
    arguments = parse("transformer_base --slice v5e-16 --decode".split())
    assert shape_of(arguments.config, arguments) == ((32, 128), (32, 202))
    assert shape_of(arguments.config, arguments, ways=48) == ((48, 128), (48, 202))
    arguments = parse("transformer_base --slice v5e-16 --decode --target-length 40".split())
    assert shape_of(arguments.config, arguments) == ((32, 128), (32, 40))
    for given, shape in ((3, (16, 4)), (11, (4, 16)), (40, (1, 40))):
        command = f"discourse_document --slice v5e-4 --decode --sentences {given} --source-length 30"
        arguments = parse(command.split())
        assert shape_of(arguments.config, arguments) == ((*shape, 32), (*shape, 58))
    arguments = parse("discourse_document --slice v5e-4 --sentences 8 --source-length 16".split())
    rows = arguments.config.data.batch_tokens // 128
    assert shape_of(arguments.config, arguments) == ((rows, 8, 16), (rows, 8, 16))
    with pytest.raises(ConfigError, match="holds fewer than 64 rows"):
        arguments = parse("transformer_base --slice v5e-16 --data.batch-tokens 4096".split())
        shape_of(arguments.config, arguments)


def test_meshes_that_are_tried_use_all_devices_and_no_network_but_for_data():
    for slice_, slices in ((parse_slice("v5e-16"), 1), (parse_slice("v5e-16"), 2), (parse_slice("v3-8"), 1)):
        found = meshes(slice_, slices)
        devices = slice_.devices * slices
        assert len(set(found)) == len(found) and found[0].data == devices
        assert all(mesh.data * mesh.fsdp * mesh.model == devices for mesh in found)
        assert all(mesh.data % slices == 0 for mesh in found)


@pytest.mark.parametrize(
    "given, sizes",
    [("--mesh data=2,fsdp=4,model=2", (2, 4, 2)), ("--mesh=fsdp=16", (-1, 16, 1)), ("--mesh data=-1,model=4", (-1, 1, 4))],
)  # fmt: skip
def test_a_mesh_may_be_given_in_short(given, sizes):
    mesh = parse(f"text_tiny {given} --slice v5e-16 --model.scan".split()).config.mesh
    assert (mesh.data, mesh.fsdp, mesh.model) == sizes


@pytest.mark.parametrize("text", ["", "4,4,1", "data=4,fspd=4", "data=four", "data=2,data=2", "data"])
def test_a_mesh_that_is_none_is_said(text, capsys):
    assert plan.main(["text_tiny", "--slice", "v5e-16", *(["--mesh", text] if text else ["--mesh"])]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"error: --mesh {text}: give the devices along each axis, such as data=4,fsdp=4,model=1"
    )
    assert error.count("\n") == 1


ROW = {
    "slice": "v5e-4", "slices": 1, "chips": 4, "mesh": {"data": 4, "fsdp": 1, "model": 1}, "program": "training step",
    "batches": 1, "source": (8, 16), "target": (8, 16), "room": 2**34, "whole": [], "used": 2**30, "fits": True,
    "parameters": 0, "arguments": 0, "temporaries": 0, "outputs": 0, "code": 0, "collectives": {}, "unknown_loops": 0,
    "flops": 1e9, "poles": {"products": 0.001}, "seconds": 0.001, "longest": "products", "tokens_per_second": 1.0,
    "encoders": None,
}  # fmt: skip


def swept(monkeypatch, tmp_path, measure) -> tuple[int, list[dict]]:
    """Exit code of a sweep whose meshes are measured so, and the rows in its file."""
    monkeypatch.setattr(plan, "prepare_environment", lambda: None)
    monkeypatch.setattr(plan, "measure", measure)
    path = tmp_path / "rows.jsonl"
    code = plan.main(f"text_tiny --slice v5e-4 --sweep-mesh --json {path}".split())
    return code, [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_sweep_goes_on_where_a_mesh_is_refused_and_ranks_the_others(monkeypatch, tmp_path, capsys):
    def measure(arguments, config, slice_):
        if config.mesh.model == 4:
            raise ConfigError("heads do not divide")
        mesh = {"data": config.mesh.data, "fsdp": config.mesh.fsdp, "model": config.mesh.model}
        return ROW | {"mesh": mesh, "seconds": 0.001 * config.mesh.data}

    code, rows = swept(monkeypatch, tmp_path, measure)
    said = capsys.readouterr().out
    assert code == 0 and len(rows) > 2 and "mesh data 1 fsdp 1 model 4: heads do not divide" in said
    ranked = [line for line in said.splitlines() if line.startswith("training step")]
    assert len(ranked) == len(rows) and "mesh data 1 fsdp 4 model 1" in ranked[0]


def test_rows_of_a_sweep_are_kept_where_it_breaks(monkeypatch, tmp_path):
    def measure(arguments, config, slice_):
        if config.mesh.fsdp > 1:
            raise KeyboardInterrupt
        return ROW

    code, rows = swept(monkeypatch, tmp_path, measure)
    assert code == 130 and len(rows) == 1


def test_a_sweep_of_which_every_mesh_is_refused_is_a_mistake(monkeypatch, tmp_path, capsys):
    def measure(arguments, config, slice_):
        raise ConfigError("no")

    assert swept(monkeypatch, tmp_path, measure) == (2, [])
    assert capsys.readouterr().out.count(": no\n") == len(meshes(parse_slice("v5e-4"), 1))


@pytest.fixture
def uncompiled(monkeypatch):
    """The row of a plan for 8 devices whose program is made and compiled to nothing."""
    program = Program(1, 1, 1, 1, 1, {}, touched=1.0)
    monkeypatch.setattr(plan, "planned_mesh", lambda *_: make_mesh())
    monkeypatch.setattr(plan, "compile_work", lambda *_: [program])
    for step in ("train_step", "beam_step"):
        monkeypatch.setattr(plan, step, lambda *_: Work([], {}, Rules(), []))

    def row(command: str) -> dict:
        arguments = parse(f"{command} --slice v5e-8".split())
        return plan.measure(arguments, arguments.config, parse_slice("v5e-8"))

    return row


def test_what_is_computed_again_takes_time_and_is_no_work_of_the_model(uncompiled):
    command = "text_tiny --training.accumulate 2"
    kept, again = uncompiled(command), uncompiled(f"{command} --model.remat")
    assert kept["flops"] == again["flops"]
    assert 1 < again["poles"]["products"] / kept["poles"]["products"] < 4 / 3


def test_rows_of_a_search_are_rounded_up_to_the_devices_that_share_them(uncompiled):
    assert uncompiled("text_tiny --decode --source-length 8 --decoding.batch-size 12")["source"] == (16, 8)


def test_a_search_has_its_parameters_whole_where_rows_alone_are_divided():
    config, shape = parse("text_tiny --slice v5e-8".split()).config, ((16, 8), (16, 12))
    held = [
        bytes_of(beam_step(config, make_mesh(*sizes), shape).params)
        for sizes in ((8, 1, 1), (2, 4, 1), (2, 1, 4))
    ]
    assert held[0] == held[1] > 2 * held[2]


def test_an_encoder_alone_decodes_nothing():
    arguments = parse("masked_small --slice v5e-4 --decode".split())
    with pytest.raises(ConfigError, match="--decode: a model that is an encoder alone"):
        plan.measure(arguments, arguments.config, parse_slice("v5e-4"))


def test_what_does_not_fit_is_told_what_makes_it_smaller():
    config = parse("transformer_base --slice v5e-4".split()).config
    row = ROW | {"fits": False, "used": 2**35, "whole": ["norm/scale"]}

    def said(program):
        return "\n".join(said_of(row | {"program": program}, parse_slice("v5e-4"), config, 0.5, None))

    training, search = said("training step"), said("beam step")
    assert "does not fit: 32.00 of the 16 GiB" in training and "--training.accumulate" in training
    assert "whole on every device: norm/scale" in training
    assert (
        "--decoding.batch-size 32" in search
        and "--decoding.beam-size 2" in search
        and "--target-length 8" in search
    )
    assert not {"--training.accumulate", "--model.remat"} & set(search.split())


def test_loops_of_unknown_length_make_an_estimate_a_lower_bound():
    config = parse("text_tiny --slice v5e-4".split()).config
    said = said_of(ROW | {"unknown_loops": 2}, parse_slice("v5e-4"), config, 0.5, None)
    assert "at least that: 2 loops do not say how often they go round, and count once" in said


def tiny(rows_multiple: int = 8, accumulate: int = 1, **changes):
    config = configs.load("text_tiny").replace(**changes)
    data = dataclasses.replace(config.data, rows_multiple=rows_multiple)
    return config.replace(data=data, training=dataclasses.replace(config.training, accumulate=accumulate))


@pytest.mark.slow
def test_an_update_of_several_batches_is_the_programs_that_training_calls():
    mesh, shape = make_mesh(2, 4), ((8, 16), (8, 16))
    (whole,) = train_step(tiny(), mesh, shape).calls
    first, again, update = train_step(tiny(accumulate=3), mesh, shape).calls
    assert (whole.times, first.times, again.times, update.times) == (1, 1, 2, 1)
    state = whole.arguments[0]
    moments = bytes_of(state.opt_state)
    assert whole.beside == update.beside == 0 and moments <= first.beside == again.beside < moments + 16
    gradients = bytes_of(state.params)
    assert bytes_of(again.arguments[0]) == bytes_of(update.arguments[1]) == gradients
    compiled = [call.function.lower(*call.arguments) for call in (first, again, update)]
    assert all(lowered.out_info for lowered in compiled)


def test_a_plan_refuses_what_training_refuses():
    shape = (16, 8), (16, 8)
    with pytest.raises(ConfigError, match="batches of 4 rows do not divide by the 8 devices"):
        train_step(tiny(rows_multiple=4), make_mesh(), shape)
    apart = MeshConfig(4, 1, 2, branches=True)
    with pytest.raises(ConfigError, match="batches of 4 rows do not divide by the 8 devices"):
        train_step(tiny(rows_multiple=4, mesh=apart), make_mesh(4, 1, 2), shape)
    small = dataclasses.replace(
        configs.load("text_tiny").model, d_model=8, positions="learned", max_positions=16
    )
    with pytest.raises(ConfigError, match="of the parameters would be whole on every device"):
        train_step(tiny(model=small), make_mesh(1, 8), shape)


def test_a_search_refuses_rows_that_do_not_divide():
    with pytest.raises(ConfigError, match="batches of 12 rows do not divide by the 8.*--decoding.batch-size"):
        beam_step(tiny(), make_mesh(), ((12, 8), (12, 8)))


def test_the_compilers_words_on_memory():
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 40.05G of "
        "15.75G hbm. Exceeded hbm capacity by 24.30G."
    )
    assert _exhausted(message) == ("needs 40.05G of 15.75G of memory on each device", int(40.05 * 2**30))
    message = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (812.17G) exceeds available HBM (15.75G). HLO module: jit_whole."
    )
    assert _exhausted(message) == ("needs 812.17G of 15.75G of memory on each device", int(812.17 * 2**30))


@pytest.mark.parametrize(
    "command, said",
    [
        ("transformer_base --slice v5-16", "error: no slice is called 'v5-16'"),
        ("transformer_base --slice v5e-16 --slices 0", "error: --slices 0: at least 1"),
        ("transformer_base", "error: "),
        ("text_tiny --slice v5e-4 --efficiency 0", "error: --efficiency 0: a share above 0, at most 1"),
        ("text_tiny --slice v5e-4 --target-length -1", "error: --target-length -1: at least 1"),
        ("discourse_document --slice v5e-4 --sentences 0", "error: --sentences 0: at least 1"),
        ("text_tiny --slice v5e-4 --sentences 4", "error: --sentences is of documents"),
        ("text_tiny --slice v5e-4 --price -3", "error: --price -3: dollars for a chip and hour"),
        ("text_tiny --slice v5e-4 --price nan", "error: --price nan: dollars for a chip and hour"),
        ("text_tiny --slice v5e-4 --json nowhere/a.jsonl", "error: --json nowhere/a.jsonl: there is no folder nowhere"),
        ("text_tiny --slice v5e-4 --sweep-mesh --mesh data=4", "error: --sweep-mesh tries the meshes that there are"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(command, said, capsys):
    assert plan.main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1


def test_plans_of_no_name_are_refused(tmp_path, capsys):
    assert plans.main(["--only", "nothing", "--results", str(tmp_path)]) == 2
    assert "no plan matches --only 'nothing'; there are " in capsys.readouterr().err


def test_every_documented_plan_is_understood():
    for command in plans.PLANS.values():
        arguments = parse(command.split())
        assert parse_slice(arguments.slice).chips and shape_of(arguments.config, arguments)


@pytest.mark.tpu
def test_pure_data_parallelism_reduces_and_does_nothing_else(tmp_path):
    rows = compiled(tmp_path, "text_tiny --slice v5e-4")
    assert set(rows["collectives"]) == {"all-reduce"} and rows["fits"] and rows["mesh"]["data"] == 4


@pytest.mark.tpu
@pytest.mark.parametrize(
    "training, devices",
    [
        ("transformer_base --slice v5e-16 --model.compute-dtype bfloat16", 16),
        ("text_small --slice v5e-4", 4),
        ("text_small --slice v5e-4 --model.scan", 4),
    ],
    ids=["base in turn", "in turn", "scanned"],
)
def test_fsdp_gathers_and_holds_no_more_than_the_largest_layer_beyond(training, devices, tmp_path):
    data, fsdp = (
        compiled(tmp_path, f"{training} --mesh.data {ways} --mesh.fsdp {devices // ways}")
        for ways in (devices, 1)
    )
    config = configs.load(training.split()[0])
    assert "all-gather" in fsdp["collectives"] and fsdp["parameters"] < 1.2 / devices * data["parameters"]
    embedding = 4 * config.data.tokenizer.vocab_size * config.model.d_model
    assert fsdp["temporaries"] <= data["temporaries"] + embedding


@pytest.mark.tpu
def test_temporaries_are_what_the_compiler_allocates(tmp_path):
    row = compiled(
        tmp_path,
        "text_small --slice v5e-4 --model.encoder.layers 2 --model.decoder.layers 2 --data.batch-tokens 16384",
        f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
    )
    (assignment,) = tmp_path.glob("*jit_whole*after_optimizations-buffer-assignment.txt")
    text = assignment.read_text()
    # Those without a color lie in HBM.
    (heap,) = re.findall(r"^allocation \d+: size (\d+), page 0, preallocated-temp", text, re.MULTILINE)
    assert int(heap) <= row["temporaries"] < int(heap) + 2**20


@pytest.mark.tpu
def test_a_step_of_the_search_and_two_slices(tmp_path):
    beam = compiled(tmp_path, "text_tiny --slice v5e-4 --decode")
    assert beam["program"] == "beam step" and beam["fits"] and beam["seconds"] > 0 and not beam["encoders"]
    two = compiled(tmp_path, "text_tiny --slice v5e-4 --slices 2")
    assert two["chips"] == 8 and two["mesh"]["data"] == 8


@pytest.mark.tpu
@pytest.mark.parametrize(
    "name, devices", [("v3-8", 8), ("v4-8", 4), ("v5p-8", 4), ("v6e-4", 4), ("tpu7x-8", 8)]
)
def test_every_generation_is_planned(name, devices, tmp_path):
    row = compiled(tmp_path, f"text_tiny --slice {name}")
    assert row["fits"] and row["mesh"]["data"] == devices and row["unknown_loops"] == 0


@pytest.mark.tpu
@pytest.mark.parametrize(
    "name, slices", [("v6e-16", 1), ("v5p-128", 1), ("v5e-16", 2), ("v4-32", 2), ("v3-32", 2)]
)
@pytest.mark.parametrize("fsdp, model", [(8, 1), (1, 2)])
def test_meshes_of_devices_as_the_compiler_has_them(name, slices, fsdp, model):
    script = (
        "from tpu.program import prepare_environment; prepare_environment()\n"
        "from tpu.slices import parse_slice; from tpu.work import planned_devices; from flaxnmt.sharding import make_mesh\n"
        f"mesh = make_mesh(-1, {fsdp}, {model}, planned_devices(parse_slice({name!r}), {slices}))\n"
        "halves = [{getattr(one, 'slice_index', 0) for one in half.flat} for half in\n"
        "    (mesh.devices[: len(mesh.devices) // 2], mesh.devices[len(mesh.devices) // 2 :])]\n"
        "print(len(set(mesh.devices.flat)), halves)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    devices = slices * parse_slice(name).devices
    assert done.stdout.split(maxsplit=1) == [str(devices), f"[{{0}}, {{{slices - 1}}}]\n"], done.stderr


@pytest.mark.tpu
def test_an_update_of_several_batches_says_the_largest_program(tmp_path):
    one = compiled(tmp_path, "text_tiny --slice v5e-4")
    four = compiled(tmp_path, "text_tiny --slice v5e-4 --training.accumulate 4")
    assert four["batches"] == 4 and four["flops"] == 4 * one["flops"]
    assert four["arguments"] - one["arguments"] == pytest.approx(one["parameters"], rel=0.01)
    assert 3 < four["seconds"] / one["seconds"] < 6


@pytest.mark.tpu
def test_encoders_in_turn_are_weighed_against_side_by_side(tmp_path):
    row = compiled(tmp_path, "text_tiny --slice v5e-4 --model.encoder.branches lstm:1 attention:1")
    assert row["encoders"]["names"] == ["lstm:1", "attention:1"] and min(row["encoders"]["seconds"]) > 0


@pytest.mark.tpu
def test_what_does_not_fit_is_said_with_what_to_do():
    code, said, _ = planned(
        "transformer_big --slice v5e-4 --data.batch-tokens 1048576 --data.rows-multiple 4 --model.compute-dtype float32"
    )
    assert code == 1 and "does not fit" in said and "--model.remat" in said and "--mesh.fsdp" in said


def compiled(tmp_path: Path, command: str, xla_flags: str = "") -> dict:
    """The row of a plan."""
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
    code, said, error = planned(f"{command} --json {path}", xla_flags)
    assert code == 0, (said, error)
    return json.loads(path.read_text())
