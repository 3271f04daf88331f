"""Collectives and bytes as they stand in the text of programs, loops with all of their rounds."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from flaxnmt.sharding import make_mesh
from tpu.hlo import Collective, array_bytes, element_bits, summary


def test_bytes_of_types():
    assert array_bytes("(f32[2,3]{1,0}, bf16[4]{0}, pred[], s8[5,1])") == [24, 8, 1, 5]


@pytest.mark.parametrize(
    "kind, bits",
    [("f8e4m3fn", 8), ("f8e8m0fnu", 8), ("s4", 4), ("u2", 2), ("c64", 64), ("c128", 128), ("bf16", 16), ("token", 0)],
)  # fmt: skip
def test_bits_of_an_element(kind, bits):
    assert element_bits(kind) == bits


def test_half_a_byte_counts_and_unknown_elements_are_refused():
    assert array_bytes("s4[3,3]{1,0}") == [5]
    with pytest.raises(ValueError, match="no bytes are known of elements 'x9'"):
        array_bytes("x9[4]")


TEXT = """
ENTRY %main (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %x = f32[32]{0} bitcast(%p)
  %all-reduce = f32[8,4]{1,0} all-reduce(f32[8,4]{1,0} %p), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%add
  %all-reduce.1 = (f32[2]{0}, bf16[3]{0}) all-reduce(%a, %b), channel_id=2, to_apply=%add
  %start = (f32[2]{0}, f32[16]{0}) all-gather-start(f32[2]{0} %y), channel_id=3, dimensions={0}
  %done = f32[16]{0} all-gather-done((f32[2]{0}, f32[16]{0}) %start)
  %r = f32[4]{0} reduce-scatter(%x), channel_id=4, dimensions={0}, to_apply=%add
  %r-start = (f32[32]{0}, f32[4]{0}) reduce-scatter-start(%x), channel_id=5, dimensions={0}, to_apply=%add
  %c = u32[4]{0} collective-permute(u32[4]{0} %z), source_target_pairs={{0,1}}
  ROOT %c-start = (u32[4]{0}, u32[4]{0}, u32[], u32[]) collective-permute-start(%z), source_target_pairs={{0,1}}
}
"""


def test_each_collective_counts_once_where_it_starts():
    assert summary(TEXT).collectives == {
        "all-gather": Collective(1, 64),
        "all-reduce": Collective(2, 128 + 8 + 6),
        "collective-permute": Collective(2, 16 + 16),
        "reduce-scatter": Collective(2, 128 + 128),
    }


FUSED = """
%all-reduce-scatter.1 (i: f32[64]) -> f32[16] {
  %i = f32[64]{0} parameter(0)
  %s = f32[64]{0} all-reduce(%i), channel_id=1, to_apply=%add
  ROOT %d = f32[16]{0} dynamic-slice(%s, %n), dynamic_slice_sizes={16}
}

%one (a: f32[4]) -> f32[16] {
  %a = f32[4]{0} parameter(0)
  ROOT %g = f32[16]{0} all-gather(%a), channel_id=2, frontend_attributes={chain_id="7"}, dimensions={0}
}

%other (b: f32[4]) -> f32[16] {
  %b = f32[4]{0} parameter(0)
  ROOT %h = f32[16]{0} all-gather(%b), channel_id=2, frontend_attributes={chain_id="7"}, dimensions={0}
}

ENTRY %main (p: f32[64]) -> f32[16] {
  %p = f32[64]{0} parameter(0)
  %f = f32[16]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1
  %o = f32[16]{0} fusion(%p), kind=kCustom, calls=%one
  ROOT %q = f32[16]{0} fusion(%p), kind=kCustom, calls=%other
}
"""


def test_a_gather_that_goes_on_beside_several_operations_counts_once_and_fused_scatters_are_scatters():
    assert summary(FUSED).collectives == {
        "all-gather": Collective(1, 64),
        "reduce-scatter": Collective(1, 256),
    }


LOOPS = """
%inner_body (i: (s32[], f32[8])) -> (s32[], f32[8]) {
  %i = (s32[], f32[8]{0}) parameter(0)
  %v = f32[8]{0} get-tuple-element(%i), index=1
  ROOT %s = f32[8]{0} all-reduce(%v), channel_id=1, to_apply=%add
}

%inner_condition (j: (s32[], f32[8])) -> pred[] {
  %j = (s32[], f32[8]{0}) parameter(0)
  %n = s32[] constant(3)
  %k = s32[] get-tuple-element(%j), index=0
  ROOT %less = pred[] compare(%k, %n), direction=LT
}

%outer_body (o: (s32[], f32[8])) -> (s32[], f32[8]) {
  %o = (s32[], f32[8]{0}) parameter(0)
  ROOT %inner = (s32[], f32[8]{0}) while(%o), condition=%inner_condition, body=%inner_body
}

%outer_condition (u: (s32[], f32[8])) -> pred[] {
  %u = (s32[], f32[8]{0}) parameter(0)
  ROOT %ask = pred[] custom-call(%u), custom_call_target="ask"
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = (s32[], f32[8]{0}) parameter(0)
  ROOT %outer = (s32[], f32[8]{0}) while(%p), condition=%outer_condition, body=%outer_body, backend_config={TRIPS}
}
"""


def test_loops_in_loops_repeat_what_is_in_them():
    found = summary(LOOPS.replace("{TRIPS}", '{"known_trip_count":{"n":"5"}}'))
    assert found.collectives == {"all-reduce": Collective(15, 15 * 32)} and found.unknown == 0


def test_a_loop_that_does_not_say_its_rounds_counts_once_and_is_said():
    found = summary(LOOPS.replace("{TRIPS}", "{}"))
    assert found.collectives == {"all-reduce": Collective(3, 3 * 32)} and found.unknown == 1


def test_a_real_program_of_eight_devices():
    mesh = make_mesh()
    rows = NamedSharding(mesh, PartitionSpec("data"))
    x = jax.device_put(jnp.ones((16, 5)), rows)
    text = jax.jit(lambda x: x.sum(0)).lower(x).compile().as_text()
    assert summary(text).collectives == {"all-reduce": Collective(1, 20)}
    assert summary(jax.jit(lambda x: 2 * x).lower(x).compile().as_text()).collectives == {}


@pytest.mark.parametrize("layers", [2, 12])
def test_a_real_scan_counts_every_layer(layers):
    mesh = make_mesh(1, 8)
    weights = jax.ShapeDtypeStruct(
        (layers, 64, 64), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(None, "fsdp"))
    )
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))

    def scanned(x, weights):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    found = summary(jax.jit(scanned).lower(x, weights).compile().as_text())
    assert found.collectives == {"all-reduce": Collective(layers, layers * 16 * 64 * 4)}
    # A round is nearly all of the program.
    assert 0.8 * layers < found.repeated < layers + 0.1 and found.unknown == 0
