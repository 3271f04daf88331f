"""Signals of one process; several are covered with their checkpoints."""

import os
import signal

import pytest

from flaxnmt.training.preemption import Preemption


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_and_handlers_come_back(number):
    earlier = signal.getsignal(number)
    with Preemption() as preemption:
        assert not preemption.requested(1)
        os.kill(os.getpid(), number)
        assert preemption.requested(2) and preemption.requested(3)
    assert signal.getsignal(number) is earlier


def test_a_second_interrupt_interrupts():
    with Preemption() as preemption, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        assert preemption.requested(1)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_second_sigterm_is_still_one_request():
    with Preemption() as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.requested(1)
