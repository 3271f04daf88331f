"""What a training begins with that starts from another run."""

import numpy as np
import pytest

from experiments.initial import with_segments
from flaxnmt.models.config import EncoderOnlyConfig, Seq2SeqConfig

TABLE = np.arange(12.0).reshape(3, 4)


def test_segments_that_pre_training_has_not_seen_begin_as_the_first():
    params = {"segment_table": {"table": TABLE}, "table": {"table": TABLE}}
    found = with_segments(params, EncoderOnlyConfig(head="masked", segments=3))
    np.testing.assert_array_equal(found["segment_table"]["table"], np.tile(TABLE[0], (3, 1)))
    assert found["table"] is params["table"]
    np.testing.assert_array_equal(params["segment_table"]["table"], TABLE)


@pytest.mark.parametrize("model", [EncoderOnlyConfig(head="classes"), Seq2SeqConfig()])
def test_segments_of_what_was_trained_on_pairs_stay(model):
    params = {"segment_table": {"table": TABLE}}
    assert with_segments(params, model) is params


def test_models_without_segments_have_none():
    assert with_segments({"table": TABLE}, EncoderOnlyConfig(segments=0)) == {"table": TABLE}
