"""How the machines of a queued resource ended together, and what follows."""

import pytest

from tpu import queued
from tpu.queued import PATIENCE, Action, Outcome, Progress, Resource, decide, read_progress


@pytest.mark.parametrize("spot", [True, False])
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize(
    "name", [*queued.WAITING, "ACTIVE", "SUSPENDED", "FAILED", "NOT_FOUND", "SOMETHING_NEW"]
)
def test_the_state_machine_never_loops_over_a_defect_nor_forgets_what_has_finished(name, outcome, spot):
    action, _ = decide(Resource(name), spot, Progress(outcome, 3, "0-0"))
    if outcome is Outcome.FINISHED:
        assert action is Action.FINISH
    elif outcome in (Outcome.MISTAKE, Outcome.DEFECT):
        assert action is Action.STOP
    elif name in ("SUSPENDED", "FAILED"):
        assert action is (Action.RECREATE if spot else Action.STOP)
    elif name == "ACTIVE" and outcome in (Outcome.PREEMPTED, Outcome.LOST):
        assert (
            action is Action.WAIT
            and decide(Resource(name), spot, Progress(outcome, 43), PATIENCE)[0] is Action.RUN
        )
    else:
        assert action is (Action.STOP if name == "NOT_FOUND" else Action.WAIT)


@pytest.mark.parametrize(
    "lines, outcome, code",
    [
        ([], Outcome.RUNNING, None),
        (["wmt 0-0 0"], Outcome.RUNNING, None),
        (["wmt 0-0 0", "wmt 0-1 running"], Outcome.RUNNING, None),
        (["wmt 0-0 0", "wmt 0-1 0"], Outcome.FINISHED, 0),
        (["wmt 0-0 0", "other 0-1 0"], Outcome.RUNNING, None),
        (["wmt 0-0 42", "wmt 0-1 running"], Outcome.RUNNING, None),
        (["wmt 0-0 42", "wmt 0-1 0"], Outcome.PREEMPTED, 42),
        (["wmt 0-0 running", "wmt 0-1 2"], Outcome.MISTAKE, 2),
        (["wmt 0-0 134", "wmt 0-1 1"], Outcome.DEFECT, 1),
        (["wmt 0-0 134", "wmt 0-1 2"], Outcome.MISTAKE, 2),
        (["wmt 0-0 143", "wmt 0-1 42"], Outcome.KILLED, 143),
        (["wmt 0-0 running", "wmt 0-1 43"], Outcome.LOST, 43),
        (["wmt 0-0 43", "wmt 0-1 1"], Outcome.DEFECT, 1),
        (["torn", "", "wmt 0-0"], Outcome.RUNNING, None),
    ],
)
def test_how_machines_ended_together(lines, outcome, code):
    found = read_progress("\n".join(f"{line} 9" for line in lines), "wmt", 2)
    assert (found.outcome, found.code) == (outcome, code)


def test_they_ended_when_the_last_did():
    found = read_progress("wmt 0-0 42 100\nwmt 0-1 42 130\nwmt 1-0 running 200", "wmt", 2)
    assert found.ended_at == 130 and read_progress("wmt 0-0 running 9", "wmt", 2).ended_at is None
