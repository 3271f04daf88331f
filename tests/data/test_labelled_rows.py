"""Labelled rows as units: what a batch of each head holds, empty rows, hosts, and the checksum."""

import dataclasses

import numpy as np
import pytest

from flaxnmt.data.batches import ShuffledBatches, SortedBatches
from flaxnmt.data.buckets import Bucket, BucketPlan
from flaxnmt.data.labelled.rows import LabelledRows

PLAN = BucketPlan((Bucket(4, 4, 4), Bucket(8, 8, 4)), 8)
SIZES = [3, 7, 4, 8, 2, 5, 6, 3, 8]
IDS = [[10 + number] * size for number, size in enumerate(SIZES)]
SEGMENTS = [[0] * (size // 2) + [1] * (size - size // 2) for size in SIZES]
SAID = {
    "classes": [0, 2, -1, 1, 1, 0, 2, 2, 0],
    "labels": [[-1, *range(size - 2), -1] for size in SIZES],
    "spans": [(number % 2, size - 1) for number, size in enumerate(SIZES)],
}
WIDTH = {"classes": (), "labels": (8,), "spans": (2,)}


def rows_of(head):
    return LabelledRows(IDS, SEGMENTS, SAID[head], head)


@pytest.mark.parametrize("head", SAID)
def test_a_batch_holds_rows_with_what_is_said_of_them(head):
    batch = rows_of(head).batch(np.array([6, -1, 0]), PLAN.buckets[1])
    assert set(batch) == {"tokens", "segments", head}
    assert all(values.dtype == np.int32 and len(values) == 3 for values in batch.values())
    for place, number in ((0, 6), (2, 0)):
        size = SIZES[number]
        assert batch["tokens"][place].tolist() == IDS[number] + [0] * (8 - size)
        assert batch["segments"][place].tolist() == SEGMENTS[number] + [0] * (8 - size)
        said = np.array(SAID[head][number])
        expected = np.pad(said, (0, 8 - size), constant_values=-1) if head == "labels" else said
        np.testing.assert_array_equal(batch[head][place], expected)
    assert batch[head].shape == (3, *WIDTH[head])
    assert not batch["tokens"][1].any() and (batch[head][1] == -1).all()


@pytest.mark.parametrize("head", SAID)
@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_an_epoch_has_every_row_once_on_any_number_of_hosts(head, hosts):
    batches = ShuffledBatches(rows_of(head), PLAN, seed=3)
    seen = []
    for step in range(len(batches)):
        parts = [
            batches.batch(step, slice(4 * host // hosts, 4 * (host + 1) // hosts)) for host in range(hosts)
        ]
        whole = batches.batch(step)
        for name, values in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)
        assert batches.target_tokens(step) == (whole["tokens"] != 0).any(-1).sum()
        seen += [int(row[0]) - 10 for row in whole["tokens"] if row.any()]
    assert sorted(seen) == list(range(len(IDS))) and batches.pairs == len(IDS)


def test_outputs_come_back_in_the_order_of_the_rows():
    batches = SortedBatches(rows_of("classes"), PLAN)
    assert batches.restore(batch["tokens"][:, 0] for batch in batches) == [ids[0] for ids in IDS]


def test_the_checksum_is_of_tokens_segments_and_labels():
    rows = rows_of("classes")
    changed = [
        dataclasses.replace(rows, ids=[*IDS[:-1], [9] * 8]),
        dataclasses.replace(rows, segments=[*SEGMENTS[:-1], [0] * 8]),
        dataclasses.replace(rows, said=[1, *SAID["classes"][1:]]),
        rows_of("labels"),
        rows_of("spans"),
    ]
    sums = [one.checksum() for one in (rows, *changed)]
    assert len(set(sums)) == len(sums) and rows_of("classes").checksum() == sums[0]
