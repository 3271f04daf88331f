"""Where the processes of a run meet before JAX does, and how each hears that another one has ended.

JAX alone hangs where a process is missing, and where one dies it ends the others by a signal that Python cannot catch.
Here the first process listens at the coordinator's address until all have come, or says who has not; then it leaves
the port to JAX and keeps the connections, so that one that closes is a process that was lost. No JAX is imported.
"""

import asyncio
import json
import os
import socket
import time
from dataclasses import dataclass

AGAIN = "then start all processes again"
RETRY = 0.2
# A host that vanished without a word is missed after as many seconds, times one more than the probes.
PROBE, PROBES = 5, 2


class LostError(Exception):
    """A process did not come; the message says which."""


class MistakeError(Exception):
    """Processes that were told different things, or half of what they need to know."""


@dataclass(frozen=True)
class Place:
    """Attributes:
    host, port: of the coordinator, which is the first process.
    processes: how many there are.
    process: which of them this is, from 0.
    """

    host: str
    port: int
    processes: int
    process: int


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
      code: its exit code; None where it could not say one.
      how: in a few words.
    """

    process: int
    code: int | None
    how: str


class Wire:
    """A connection with a JSON object in each line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", PROBE), ("TCP_KEEPINTVL", PROBE), ("TCP_KEEPCNT", PROBES)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    async def read(self) -> dict | None:
        """The next message; None where none comes any more, or somebody else is at the other end."""
        try:
            message = json.loads(await self._reader.readline())
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def write(self, **message: object) -> None:
        """Sends a message, if there is still someone to take it."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        self._writer.close()


class Peers:
    """The other processes of a run, as far as their connections tell.

    The first process is connected with each of the others and passes on what it hears; they are connected with it.

    Attributes:
      hosts: the name of the host of each process.
    """

    def __init__(self, place: Place):
        self.place = place
        self.hosts = [""] * place.processes
        self.hosts[place.process] = socket.gethostname()
        self._wires: dict[int, Wire] = {}
        self._ended: dict[int, Ended] = {}
        self._news: asyncio.Queue[Ended] = asyncio.Queue()
        self._all_here: asyncio.Future = asyncio.get_running_loop().create_future()
        self._listening: set[asyncio.Task] = set()

    def name(self, process: int) -> str:
        """A process for a person: its number and its host."""
        return f"process {process} of {self.place.processes} on {self.hosts[process] or 'an unknown host'}"

    async def next(self) -> Ended:
        """Waits until another process has ended."""
        return await self._news.get()

    def tell(self, ended: Ended) -> None:
        """Says that a process has ended to those that may not know."""
        for process, wire in self._wires.items():
            if process != ended.process:
                wire.write(**vars(ended))

    async def close(self) -> None:
        """Ends the connections, once what was written is under way."""
        for wire in list(self._wires.values()):
            wire.close()
        for task in self._listening:
            task.cancel()
        await asyncio.sleep(0)

    async def gather(self, seconds: float) -> None:
        """Waits for all others, as the first process."""
        deadline = time.monotonic() + seconds
        if self.place.processes == 1:
            return
        server = await self._serve(deadline)
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                await self._all_here
        except TimeoutError:
            raise LostError(self._tell_refusal("missing", self._missing(seconds))) from None
        except MistakeError as error:
            self._tell_refusal("mistake", str(error))
            raise
        finally:
            server.close()
        for wire in self._wires.values():
            wire.write(hosts=self.hosts)

    async def visit(self, seconds: float) -> None:
        """Goes to the first process, and waits there for the others."""
        place, deadline = self.place, time.monotonic() + seconds
        absent = f"process 0 of {place.processes} did not come within {seconds:g} s"
        look = f"nothing answers at {place.host}:{place.port}: see whether it runs there, {AGAIN}"
        while True:
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), RETRY)):
                    wire = await self._connect()
                if wire is not None:
                    wire.write(
                        process=place.process, processes=place.processes, host=self.hosts[place.process]
                    )
                    # The first process may have begun to wait just now.
                    async with asyncio.timeout(seconds + PROBE):
                        answer = await wire.read() or {}
                    if "hosts" in answer:
                        self.hosts = answer["hosts"]
                        self._wires[0] = wire
                        self._keep(asyncio.create_task(self._listen(0)))
                        return
                    for kind, error in (("missing", LostError), ("mistake", MistakeError)):
                        if kind in answer:
                            raise error(answer[kind])
                    wire.close()
            except (OSError, TimeoutError):
                pass
            if time.monotonic() >= deadline:
                raise LostError(f"{absent}; {look}")
            await asyncio.sleep(RETRY)

    async def _connect(self) -> Wire | None:
        reader, writer = await asyncio.open_connection(self.place.host, self.place.port)
        if writer.get_extra_info("sockname") == writer.get_extra_info("peername"):
            # A port that nobody listens at may be given to the very connection that looks for it.
            writer.close()
            return None
        return Wire(reader, writer)

    async def _serve(self, deadline: float) -> asyncio.Server:
        while True:
            try:
                # On every address, as JAX after it.
                return await asyncio.start_server(self._visited, None, self.place.port)
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise MistakeError(
                        f"the coordinator cannot listen at port {self.place.port} ({os.strerror(error.errno)}): end "
                        f"what uses it, or give another --coordinator to all processes, {AGAIN}"
                    ) from None
            await asyncio.sleep(RETRY)

    def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._keep(asyncio.create_task(self._welcome(Wire(reader, writer))))

    async def _welcome(self, wire: Wire) -> None:
        hello = await wire.read() or {}
        process, processes, host = (hello.get(name) for name in ("process", "processes", "host"))
        if not isinstance(process, int) or self._all_here.done():
            wire.close()
            return
        wrong = None
        if processes != self.place.processes:
            wrong = f"--processes is {processes} on {host} and {self.place.processes} on {self.hosts[0]}"
        elif not 0 < process < self.place.processes or process in self._wires:
            wrong = f"--process {process} is given on {host} and on {self.hosts[process]}"
        if wrong is not None:
            text = f"{wrong}: give all the same --processes, and each another --process, {AGAIN}"
            wire.write(mistake=text)
            wire.close()
            self._all_here.set_exception(MistakeError(text))
            return
        self._wires[process], self.hosts[process] = wire, str(host)
        if len(self._wires) == self.place.processes - 1:
            self._all_here.set_result(None)
        await self._listen(process)

    async def _listen(self, process: int) -> None:
        """Hears what a process says until its connection ends."""
        while (message := await self._wires[process].read()) is not None:
            self._hear(Ended(**message))
        self._wires.pop(process).close()
        if self.place.process or self._all_here.done():
            self._hear(Ended(process, None, "was lost (its connection broke)"))

    def _hear(self, ended: Ended) -> None:
        if ended.process not in self._ended:
            self._ended[ended.process] = ended
            self._news.put_nowait(ended)
            if self.place.process == 0:
                self.tell(ended)

    def _keep(self, task: asyncio.Task) -> None:
        # A loop only knows its tasks weakly.
        self._listening.add(task)

    def _missing(self, seconds: float) -> str:
        absent = [str(process) for process in range(1, self.place.processes) if process not in self._wires]
        here = ", ".join(f"{process} on {self.hosts[process]}" for process in sorted({0, *self._wires}))
        return (
            f"process {' and '.join(absent)} of {self.place.processes} did not come within {seconds:g} s (here: {here}): "
            f"see what became of the missing, {AGAIN}"
        )

    def _tell_refusal(self, kind: str, text: str) -> str:
        for wire in self._wires.values():
            wire.write(**{kind: text})
        return text


async def meet(place: Place, seconds: float) -> Peers:
    """The others, once all have come.

    Raises:
      LostError: if one has not come within the seconds.
      MistakeError: if they were not told the same number of processes, or two the same place among them.
    """
    peers = Peers(place)
    try:
        await (peers.gather if place.process == 0 else peers.visit)(seconds)
    except BaseException:
        await peers.close()
        raise
    return peers
