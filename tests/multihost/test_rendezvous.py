"""Processes that meet, or do not, and how each learns that another one has ended; nothing here needs JAX."""

import contextlib
import signal
import socket
import subprocess
import sys
import time

import pytest
from cases import slow_but
from clusters import child, ends, ends_soon, places, training
from tiny_runs import ROOT

from experiments.rendezvous import MistakeError
from experiments.supervise import Supervisor
from experiments.train import cluster

COMMAND = ["discourse_demo", "--run", "RUN"]
FEW = ["--join-seconds", "3"]


def test_a_host_that_never_comes_is_named_to_the_others():
    first, second, third, fourth = ([*COMMAND, *FEW, *place] for place in places(4))
    began = time.monotonic()
    with training([first, fourth, second]) as processes:
        codes, streams = ends(processes)
    assert codes == [43] * 3 and time.monotonic() - began < 15
    host = socket.gethostname()
    assert (
        streams
        == [
            f"error: process 2 of 4 did not come within 3 s (here: 0 on {host}, 1 on {host}, 3 on {host}): see what became "
            "of the missing, then start all processes again\n"
        ]
        * 3
    )


def test_a_coordinator_that_never_comes_is_named_too():
    _, second = places(2)
    with training([[*COMMAND, "--join-seconds", "1", *second]]) as processes:
        codes, (said,) = ends(processes)
    assert codes == [43]
    assert said.startswith(f"error: process 0 of 2 did not come within 1 s; nothing answers at {second[1]}: ")


def test_processes_that_were_told_different_things():
    first, _ = places(2)
    other = ["--processes", "3", "--process", "1"]
    with training([[*COMMAND, *FEW, *first], [*COMMAND, *FEW, *first[:2], *other]]) as processes:
        codes, streams = ends(processes)
    host = socket.gethostname()
    line = (
        f"error: --processes is 3 on {host} and 2 on {host}: give all the same --processes, and each another "
    )
    assert codes == [2, 2] and all(said.startswith(line) for said in streams)


def test_a_port_that_is_taken():
    first, _ = places(2)
    port = int(first[1].partition(":")[2])
    with socket.create_server(("", port)), training([[*COMMAND, "--join-seconds", "1", *first]]) as processes:
        codes, (said,) = ends(processes)
    assert codes == [2] and said.startswith(
        f"error: the coordinator cannot listen at port {port} (Address already in use): end what uses it, or "
    )


def test_strangers_at_the_door_do_not_count():
    first, second = places(2)
    port = int(first[1].partition(":")[2])
    with training([[*COMMAND, *FEW, *first]]) as (process,):
        for words in (b"GET / HTTP/1.1\r\n\r\n", b'{"process": "1"}\n', b"[]\n", b""):
            while True:
                try:
                    with socket.create_connection(("127.0.0.1", port)) as stranger:
                        stranger.sendall(words)
                    break
                except OSError:
                    time.sleep(0.02)
        codes, (said,) = ends([process])
    assert codes == [43] and "process 1 of 2 did not come within 3 s" in said


WORKER = """
import sys
from experiments.supervise import supervise
from experiments.rendezvous import Place
from experiments.train import cluster
assert "jax" not in sys.modules and "flaxnmt" not in sys.modules
sys.exit(supervise([sys.executable, "-c", sys.argv[1]], *cluster(sys.argv[2:])[1:]))
"""
LONG = "print('here', flush=True); import time; time.sleep(100)"
KILLED = "import os, time; time.sleep(0.5); os.kill(os.getpid(), 9)"


@contextlib.contextmanager
def workers(*children):
    """Supervisors of processes that do as these programs say."""
    with contextlib.ExitStack() as stack:
        started = []
        for program, place in zip(children, places(len(children)), strict=True):
            command = [sys.executable, "-c", WORKER, program, *place]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen(command, cwd=ROOT, **pipes))
            stack.callback(started[-1].communicate)
            stack.callback(started[-1].kill)
        yield started


def supervised(*children, act=lambda workers: None):
    """Exit codes and error streams of supervised programs, after something has been done to them."""
    with workers(*children) as started:
        for worker, program in zip(started, children, strict=True):
            if program is LONG:
                assert worker.stdout.readline() == "here\n"
        act(started)
        return ends(started)


def test_whoever_is_killed_the_others_end_and_say_so():
    host = socket.gethostname()
    codes, streams = supervised(LONG, KILLED, LONG)
    again = "start all processes again, and the run goes on from its last checkpoint\n"
    assert codes == [43] * 3
    assert streams[0] == streams[2] == f"error: process 1 of 3 on {host} ended by SIGKILL: {again}"
    assert streams[1] == (
        f"error: the training was ended by SIGKILL (often the system, when memory runs out): {again}"
    )


@pytest.mark.parametrize("killed", slow_but([0], [0, 1]))
def test_a_supervisor_that_is_killed_takes_its_process_along(killed):
    orphans = []

    def kill(started):
        orphans.append(child(started[killed].pid))
        started[killed].kill()

    codes, streams = supervised(LONG, LONG, LONG, act=kill)
    others = [i for i in range(3) if i != killed]
    assert [codes[i] for i in others] == [43, 43] and ends_soon(orphans[0])
    assert all(f"error: process {killed} of 3 on " in streams[i] and "was lost" in streams[i] for i in others)


@pytest.mark.parametrize("number", slow_but([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
def test_a_request_to_stop_reaches_all(number):
    codes, streams = supervised(LONG, LONG, act=lambda started: started[1].send_signal(number))
    assert codes == [42, 42] and streams == ["", ""]


def test_a_process_that_dies_while_it_saves_has_not_saved():
    parent = Supervisor(["true"])
    parent.asked.set()
    assert parent._outcome(-signal.SIGTERM, None) == (42, None)
    for too_late, said in (
        (False, "was ended by SIGKILL"),
        (True, "did not save within 60 s after it was asked"),
    ):
        parent.too_late = too_late
        code, line = parent._outcome(-signal.SIGKILL, None)
        assert code == 43 and said in line


def test_a_mistake_of_one_ends_all_as_a_mistake():
    codes, streams = supervised(LONG, "import sys; sys.exit('no file')", "import sys; sys.exit(2)")
    assert codes[0] in (1, 2) and codes[1:] == [1, 2]
    assert "ended with exit code" in streams[0] and "its own output says why" in streams[0]


def test_a_regular_end_is_none_of_the_others_business():
    assert supervised("pass", "import time; time.sleep(0.5)") == ([0, 0], ["", ""])


def test_what_the_command_line_says_of_processes():
    assert cluster(["text_tiny", "--train", "a", "b"])[0] is False
    several, place, seconds = cluster(
        "text_tiny --processes=2 --coordinator h:80 --process 1 --seed 3".split()
    )
    assert several and (place.host, place.port, place.processes, place.process) == ("h", 80, 2, 1)
    assert seconds == 30 and cluster(["--processes", "0"]) == (True, None, 300)
    assert cluster(["--processes", "0", "--join-seconds", "9"]) == (True, None, 9)
    wrong = ("--processes x", "--processes 2 --process 1", "--processes 2 --coordinator h:1")
    for options in (*wrong, "--processes 2 --process 1 --coordinator h:70000"):
        with pytest.raises(MistakeError, match="processes need --coordinator HOST:PORT"):
            cluster(options.split())
