import pytest

from flaxnmt.translation.shapes import FULL, LONGEST, square_plan


@pytest.mark.parametrize(("rows", "multiple"), [(64, 1), (1, 1), (3, 1), (64, 8), (1, 8)])
def test_long_lines_get_fewer_rows_in_multiples(rows, multiple):
    plan = square_plan(rows, multiple)
    assert plan.buckets[-1].source == LONGEST
    for bucket in plan.buckets:
        assert bucket.rows % multiple == 0
        assert bucket.rows >= multiple
        most = max(rows * FULL, bucket.source)
        assert bucket.rows * bucket.source < most + multiple * bucket.source
        if bucket.source <= FULL:
            assert rows <= bucket.rows < rows + multiple
