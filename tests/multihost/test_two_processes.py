"""Two processes that train as one: one of them is killed, both begin again, both are asked to stop."""

import os
import signal
import time

import pytest
from clusters import child, ends, is_alive, newest, places, rows, training, wait_for


def by_two(trained, run, **options):
    return training([[*trained.arguments, "--run", run, *place] for place in places(2)], **options)


@pytest.fixture(scope="module")
def unbroken(trained, tmp_path_factory):
    """The run of two processes that nothing happens to."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    with by_two(trained, str(run)) as processes:
        codes, _ = ends(processes, seconds=300)
    assert codes == [0, 0]
    return run


@pytest.mark.slow
def test_two_processes_train_as_one_does(trained, unbroken):
    found, expected = rows(unbroken, "train"), rows(trained.directory, "train")
    assert [*found] == [*expected]
    # Sums of two halves are rounded otherwise, and training makes what that changes larger from step to step.
    for step in [*found][:24]:
        assert found[step]["loss"] == pytest.approx(expected[step]["loss"], abs=1e-5)


@pytest.mark.slow
def test_a_lost_process_ends_both_and_they_go_on_where_they_were(trained, unbroken, tmp_path):
    run = tmp_path / "run"
    with by_two(trained, str(run)) as processes:
        wait_for(lambda: newest(run) >= 10, processes)
        orphan = child(processes[1].pid)
        processes[1].kill()
        began = time.monotonic()
        codes, (said, _) = ends(processes)
    assert codes == [43, -signal.SIGKILL] and time.monotonic() - began < 30 and not is_alive(orphan)
    said = said.splitlines()
    assert "devices: 2 x cpu as data 2" in said and said[-1].startswith("error: process 1 of 2 on ")
    assert said[-1].endswith(
        " was lost (its connection broke): start all processes again, and the run goes on from its last checkpoint"
    )
    begins = newest(run)
    # From here on as if it lay on a bucket: each process works on copies of its own.
    copies = tmp_path / "copies"
    copies.mkdir()
    with by_two(trained, f"file://{run}", variables={"TMPDIR": str(copies)}) as processes:
        wait_for(lambda: newest(run) >= begins + 10, processes)
        processes[1].send_signal(signal.SIGTERM)
        codes, (first, second) = ends(processes)
    stopped = newest(run)
    assert codes == [42, 42] and begins + 10 <= stopped < 200
    assert f"continues {run} from step {begins}" in first
    assert f"asked to stop: saved at step {stopped}; the same command continues" in first
    # The second says nothing; that a signal came is said by JAX.
    assert [line for line in second.splitlines() if "SIGTERM caught" not in line] == []
    kept = copies / f"flaxnmt-{os.getuid()}"
    of_both = [{path.name for path in (kept / f"process{i}/file{run}").iterdir()} for i in range(2)]
    assert all(
        "checkpoints" not in names and {"tokenizer", "data", "config.json"} <= names for names in of_both
    )
    found, expected = rows(run, "train"), rows(unbroken, "train")
    assert [*found] == [*expected][:stopped] and max(found) == stopped
    names = "loss", "gradient_norm"
    for step, row in found.items():
        assert [row[name] for name in names] == [expected[step][name] for name in names]
    assert max(rows(run, "dev"), default=0) == 40 * (stopped // 40)
    # Where the time went, both starts together.
    spent = found[stopped]["phases"]
    assert spent["restore"] > 0 and sum(spent.values()) == pytest.approx(
        60 * found[stopped]["minutes"], abs=0.1
    )
