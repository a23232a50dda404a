"""A TCP proxy before each server of a URL: faults of the network, without the server's help.

with Proxy("db.example", 6379) as proxy:
    proxy.delay(0.2)        # on every second connection everything takes that much longer, each way
    proxy.cut()             # every connection breaks now
    proxy.lose_replies()    # requests arrive, answers vanish
    proxy.lose_requests()   # the other way round
    proxy.hold()            # nothing passes and nobody is told; what was sent arrives after `heal`, late
    proxy.hold_replies()    # the same for answers alone: all is done, and nobody knows yet
    proxy.refuse()          # every connection breaks, new ones at once
    proxy.heal()
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final, Literal

Way = Literal["request", "reply"]
MOST: Final = 65536
CONNECTS_WITHIN: Final = 5.0


class FaultProxy:
    """Stands between this machine's workers and one server; each method takes effect at once, from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._links: set[asyncio.Task[None]] = set()
        self._delay = 0.0
        self._loses: Way | None = None
        self._refuses = False
        self._passing = asyncio.Event()
        self._passing.set()
        self._replying = asyncio.Event()
        self._replying.set()
        self._accepted = 0
        self.lossy = False
        """Whether bytes were lost on the connections that are open: they cannot be used again."""
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="lockline-verify-proxy", daemon=True)
        self._thread.start()
        started.wait()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what happens to the network -----------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Hold each piece back for that long, on every second connection: who is slow meets who is not."""
        self._soon(lambda: setattr(self, "_delay", seconds))

    def cut(self) -> None:
        """Break every connection."""
        self._soon(self._cut)

    def lose_replies(self) -> None:
        """What the server says vanishes."""
        self._soon(lambda: self._lose("reply"))

    def lose_requests(self) -> None:
        """What is said to the server vanishes."""
        self._soon(lambda: self._lose("request"))

    def hold(self) -> None:
        """Nothing passes until it is healed."""
        self._soon(self._passing.clear)

    def hold_replies(self) -> None:
        """What the server says does not arrive until it is healed."""
        self._soon(self._replying.clear)

    def refuse(self) -> None:
        """As if nobody were there."""

        def begin() -> None:
            self._refuses = True
            self._cut()

        self._soon(begin)

    def move(self, host: str, port: int) -> None:
        """From now on another server is at this address, as after a failover: every connection breaks."""

        def begin() -> None:
            self._server = (host, port)
            self._cut()

        self._soon(begin)

    def heal(self) -> None:
        """All is well again."""
        self._soon(self._heal)

    def close(self) -> None:
        """End it and every connection through it."""
        self._soon(self._loop.stop)
        self._thread.join(5)
        self._listener.close()

    # -- in the loop ---------------------------------------------------------------------------------

    def _soon(self, act: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(act)

    def _cut(self) -> None:
        for link in self._links:
            link.cancel()

    def _lose(self, way: Way) -> None:
        self._loses, self.lossy = way, True

    def _heal(self) -> None:
        self._delay, self._loses, self._refuses = 0.0, None, False
        if self.lossy:
            self.lossy = False
            self._cut()
        self._passing.set()
        self._replying.set()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._listener))
        started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        self._accepted += 1
        try:
            if not self._refuses:
                await self._passing.wait()
                async with asyncio.timeout(CONNECTS_WITHIN):
                    there, here = await asyncio.open_connection(*self._server)
                try:
                    await self._join(reader, writer, there, here)
                finally:
                    here.transport.abort()
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the other side learns of it by the end of the connection
        finally:
            self._links.discard(task)
            writer.transport.abort()

    async def _join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        here: asyncio.StreamWriter,
    ) -> None:
        slow = bool(self._accepted % 2)
        pumps = [
            asyncio.create_task(self._pump(reader, here, "request", slow)),
            asyncio.create_task(self._pump(there, writer, "reply", slow)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, slow: bool) -> None:
        while data := await reader.read(MOST):
            if slow and self._delay:
                await asyncio.sleep(self._delay)
            await self._passing.wait()
            if way == "reply":
                await self._replying.wait()
            if self._loses == way:
                continue
            writer.write(data)
            await writer.drain()
