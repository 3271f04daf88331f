"""The parent of one process of several: starts it once all others are there, and says how it ended.

What ends a process of a cluster cannot be caught inside it: a signal from the system, or from JAX when another process
is gone. The parent outlives it, prints one line for a person, and ends with an exit code for whoever starts runs. It
imports no JAX, so that it is there at once and costs nothing.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from experiments.rendezvous import Ended, LostError, MistakeError, Peers, Place, meet

# As everywhere in flaxnmt, of which nothing is imported here, since that loads JAX.
MISTAKE, PREEMPTED = 2, 42
LOST = 43
"""Exit code where a process of the run did not come or was lost, or a bucket does not answer: start all of them again."""

MOMENT = 3.0
"""Seconds in which a process may end by itself where another one has failed, and say what it knows."""
GRACE = 60.0
"""The same where another one was asked to stop."""
ON = "start all processes again, and the run goes on from its last checkpoint"
FROM_OUTSIDE = (signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGBUS)

_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def supervise(command: Sequence[str], place: Place | None, seconds: float) -> int:
    """Runs a command as one of several processes; its exit code, with a line on standard error where it has a cause.

    Args:
      command: what to start once the others are there.
      place: of this process among them; None where a cluster's own service knows it, and JAX alone looks for them.
      seconds: within which all have to come.
    """
    code, line = asyncio.run(Supervisor(command).run(place, seconds))
    if line:
        print(f"error: {line}", file=sys.stderr, flush=True)
    return code


class Supervisor:
    """A child, its peers, and what has been asked of it."""

    def __init__(self, command: Sequence[str]):
        self.command = command
        self.child: asyncio.subprocess.Process | None = None
        self.asked = asyncio.Event()
        self.interrupts = 0
        self.lost: Ended | None = None
        self.too_late = False

    async def run(self, place: Place | None, seconds: float) -> tuple[int, str | None]:
        """Exit code and line."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        peers = None
        if place is not None:
            meeting = asyncio.create_task(meet(place, seconds))
            asked = asyncio.create_task(self.asked.wait())
            await asyncio.wait({meeting, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if not meeting.done():
                meeting.cancel()
                await asyncio.wait({meeting})
                return PREEMPTED, None
            try:
                peers = meeting.result()
            except LostError as error:
                return LOST, str(error)
            except MistakeError as error:
                return MISTAKE, str(error)
        # A session of its own: Ctrl-C in a terminal comes to the parent alone, which passes it on as a request to save.
        self.child = await asyncio.create_subprocess_exec(
            *self.command, start_new_session=True, preexec_fn=_die_with_parent
        )
        status = await self._watch(peers)
        code, line = self._outcome(status, peers)
        if peers is not None:
            how = (
                f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
            )
            peers.tell(Ended(place.process, code, how))
            await peers.close()
        return code, line

    def _signalled(self, number: int) -> None:
        self.interrupts += number == signal.SIGINT
        self.asked.set()
        if self.interrupts > 1 and self.child is not None:
            _send(self.child, signal.SIGKILL)

    async def _watch(self, peers: Peers | None) -> int:
        """Waits for the child, passes on what is asked of it, and ends it where it waits for a process that is gone."""
        ended = asyncio.create_task(self.child.wait())
        asked = asyncio.create_task(self.asked.wait())
        news = None if peers is None else asyncio.create_task(peers.next())
        patience = None
        while not ended.done():
            waiting = {task for task in (ended, asked, news) if task is not None}
            done, _ = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self.too_late = patience == GRACE
                _send(self.child, signal.SIGKILL)
                await ended
            if asked in done:
                asked = None
                _send(self.child, signal.SIGTERM)
            if news in done:
                peer, news = news.result(), asyncio.create_task(peers.next())
                if peer.code == PREEMPTED:
                    self.asked.set()
                    patience = patience or GRACE
                elif peer.code != 0:
                    self.lost, patience = self.lost or peer, 0 if peer.code in (None, LOST) else MOMENT
        if ended.result() in (1, LOST, -signal.SIGABRT) and self.lost is None and news is not None:
            # What ended the child may be the end of another one, of which the news is still under way.
            await asyncio.wait({news}, timeout=MOMENT)
            if news.done() and news.result().code not in (0, PREEMPTED):
                self.lost = news.result()
        for task in (asked, news):
            if task is not None:
                task.cancel()
        return ended.result()

    def _outcome(self, status: int, peers: Peers | None) -> tuple[int, str | None]:
        """Exit code and line for the end of the child (minus the signal, where one ended it)."""
        if status in (0, PREEMPTED):
            return status, None
        if self.interrupts > 1:
            return 128 + signal.SIGINT, "interrupted"
        if self.asked.is_set() and status == -signal.SIGTERM and self.lost is None:
            # It had not begun: what trains saves, and leaves with the code for it.
            return PREEMPTED, None
        lost = self.lost
        of_another = lost is not None and lost.code in (None, LOST)
        if status > 0 and not of_another:
            return status, None
        if lost is not None:
            who = peers.name(lost.process)
            if of_another:
                return LOST, f"{who} {lost.how}: {ON}"
            return lost.code, f"{who} {lost.how}: its own output says why"
        name = signal.Signals(-status).name
        if -status not in FROM_OUTSIDE:
            return 128 - status, f"the training was ended by {name}, which is a defect: please report it"
        if -status == signal.SIGABRT:
            return LOST, f"JAX has given up (see above), as it does where another process was lost: {ON}"
        if self.too_late:
            return LOST, f"the training did not save within {GRACE:g} s after it was asked to stop: {ON}"
        memory = " (often the system, when memory runs out)" if -status == signal.SIGKILL else ""
        return LOST, f"the training was ended by {name}{memory}: {ON}"


def _send(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    # The methods of asyncio's process ask first whether it lives, and its exit code is lost where it does not any more.
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, number)


def _die_with_parent() -> None:
    """In the child: nobody could end it any more if its parent were killed."""
    if _prctl is not None:
        set_parent_death_signal = 1
        _prctl(set_parent_death_signal, signal.SIGKILL)
