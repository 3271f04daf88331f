"""Signals of one process; several are covered with their checkpoints."""

import signal

import pytest

from flaxnmt.training.preemption import Preemption


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_and_handlers_come_back(number):
    earlier = signal.getsignal(number)
    with Preemption() as preemption:
        assert not preemption.requested(1)
        signal.raise_signal(number)
        assert preemption.requested(2) and preemption.requested(3)
    assert signal.getsignal(number) is earlier


@pytest.fixture
def interruptible():
    """As in a terminal; what is started in the background ignores interrupts."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_interrupts():
    with Preemption() as preemption, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        assert preemption.requested(1)
        signal.raise_signal(signal.SIGINT)


def test_a_second_sigterm_is_still_one_request():
    with Preemption() as preemption:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert preemption.requested(1)
