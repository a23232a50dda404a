"""What is kept beside a line, written under the token: a node that is put in one transaction with a check of the claim's own.

The time is the leader's: it stamps every write. Whoever looks writes first, to the folder of all that is kept, and reads behind that; so it
sees what time it is, and all that was written before. A node does not end by itself (a server knows nodes with a ttl only where it was
told to), so it says how long it counts, and some of those who write remove what they find to be over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from kazoo import exceptions as problems
from kazoo.protocol.serialization import CheckVersion, Create, Delete, GetData, SetData, Transaction

from ...core.claim import Record
from ...errors import LocklineError
from ...runtime import Runtime
from ..kept import A_SWEEP, KeptText, sweeps, to_sweep, unpacked
from .channel import KazooChannel
from .claims import EXPECTED, OwnNode
from .commands import KEPT, LineCommands, checked, escaped, is_cut

log = logging.getLogger("lockline")

LARGEST: Final = 1_000_000
"""Bytes of a value: a server takes a little more than that in one request (jute.maxbuffer), and paths go along."""
SWEEPER: Final = ".sweeper"
"""Its version says who swept last. A name of ours has no dot in front."""


class ZooKeeperKeeping:
    """What one client keeps at an ensemble."""

    def __init__(
        self, channel: KazooChannel, commands: LineCommands, runtime: Runtime, own: Mapping[str, OwnNode]
    ) -> None:
        self._channel = channel
        self._commands = commands
        self._runtime = runtime
        self._own = own
        self._root = f"{commands.root}/{KEPT}"

    def _path(self, name: str, what: str) -> str:
        return f"{self._root}/{escaped(name)}.{what}"

    async def look(self, name: str, what: str, until: float) -> Record:
        """What is kept there, and the leader's time."""
        request = GetData(self._path(name, what), None)
        while True:
            await self._channel.connected(None, until, insist=False)
            # In this order, and answered in it: what is read is no older than the write.
            stamp, found = await self._channel.ask(SetData(self._root, b"", -1), request, until=until)
            if is_cut((stamp, found)):
                continue
            if isinstance(stamp, problems.NoNodeError):
                await self._commands.make(self._root, until)
                continue
            now, step = checked(stamp).mtime / 1000, stamp.mzxid
            if isinstance(found, problems.NoNodeError):
                return Record(now, step=step)
            return _record(checked(found), now, step)

    async def keep(self, name: str, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
        """Keep it, if the claim with this token stands; a repeat writes the same."""
        own = next((node for node in list(self._own.values()) if node.token == token and node.claim.name == name), None)
        if own is None or own.gone or own.path is None:
            return False
        path, data = self._path(name, what), KeptText(token, ttl, 0.0, 0.0, value).packed()
        put: Any = SetData(path, data, -1)
        tried = False
        while True:
            await self._channel.connected(None, until, tried=tried)
            (answers,) = await self._channel.ask(Transaction([CheckVersion(own.path, -1), put]), until=until)
            if is_cut((answers,)):
                tried = True
                continue
            there, done = checked(answers)
            if isinstance(there, problems.NoNodeError):
                return tried and await self._is_mine(path, token, until)
            checked(*(answer for answer in (there, done) if not isinstance(answer, EXPECTED)), None)
            if not isinstance(done, Exception):
                break
            if isinstance(done, problems.NoNodeError) and isinstance(put, Create):
                await self._commands.make(self._root, until)
            # It is not there yet, or by now it is.
            absent = isinstance(done, problems.NoNodeError)
            put = Create(path, data, self._commands.acl, 0) if absent else SetData(path, data, -1)
        if sweeps():
            await self._sweep(min(until, self._runtime.now() + A_SWEEP))
        return True

    async def _is_mine(self, path: str, token: int, until: float) -> bool:
        """Whether a try that was not answered has written it, and the claim went after that."""
        while True:
            await self._channel.connected(None, until, tried=True)
            stamp, found = await self._channel.ask(SetData(self._root, b"", -1), GetData(path, None), until=until)
            if not is_cut((stamp, found)):
                kept = unpacked(found[0]) if isinstance(found, tuple) else None
                return kept is not None and kept.token == token

    async def _sweep(self, until: float) -> None:
        """Remove some of what nobody needs any more, whoever wrote it; what is written meanwhile stays.

        A node that was removed and made again counts its versions anew. So only one removes at a time: whoever begins makes what an
        earlier one still sends come to nothing.
        """
        sweeper = f"{self._root}/{SWEEPER}"
        try:
            there = [child for child in await self._commands.children(self._root, until) if child != SWEEPER]
            (turn,) = await self._channel.ask(SetData(sweeper, b"", -1), until=until)
            if isinstance(turn, problems.NoNodeError):
                await self._channel.ask(Create(sweeper, b"", self._commands.acl, 0), until=until)
                return  # the next one who sweeps finds it
            now = checked(turn).mtime / 1000
            paths = [f"{self._root}/{child}" for child in to_sweep(there)]
            found = await self._channel.ask(*(GetData(path, None) for path in paths), until=until)
            over = [
                (path, seen[1].version)
                for path, seen in zip(paths, found, strict=True)
                # What is nobody's value is not ours to remove.
                if isinstance(seen, tuple) and unpacked(seen[0]) is not None and _record(seen, now, 0).value is None
            ]
            removals = [Transaction([CheckVersion(sweeper, turn.version), Delete(*one)]) for one in over]
            if removals:
                await self._channel.ask(*removals, until=until)
        except LocklineError as problem:
            log.debug("removing what is no longer kept failed: %s", problem)


def _record(found: tuple[bytes, Any], now: float, step: int) -> Record:
    data, stat = found
    kept, written = unpacked(data), stat.mtime / 1000
    # Clocks of leaders differ: time does not go back beside what was written.
    now = max(now, written)
    if kept is None or written + kept.ttl <= now:
        return Record(now, step=step)
    return Record(now, kept.value, kept.token, written, written + kept.ttl, step, stat.mzxid)
