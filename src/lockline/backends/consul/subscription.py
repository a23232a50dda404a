"""What is pushed: a key of the waiting client, put by whoever makes room, and heard by one blocking query per client on its own keys."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Final

from ...core.rule import holders
from ...core.worker import Worker
from ...errors import LocklineError
from ...runtime import Runtime
from . import commands
from .blocking_query import A_QUERY, AFTER_A_FAILURE, BlockingQuery
from .channel import ConsulChannel, entries_of
from .commands import ConsulKeys, Step, ToldClaim
from .connection import NoReply
from .sessions import ServerSession, Sessions

A_CALL: Final = 2.0


class ConsulPushes:
    """Tells others that they hold now, and listens for this client: one connection, whatever the number of locks."""

    def __init__(
        self, channel: ConsulChannel, sessions: Sessions, keys: ConsulKeys, runtime: Runtime,
        call: Callable[[str], None], hear: Callable[[str, str, int], None], idle: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._channel = channel
        self._sessions = sessions
        self._keys = keys
        self._query = BlockingQuery(channel, runtime, keys.home, "recurse", entries_of)
        self._call = call
        self._tell = hear
        self._idle = idle
        self._runtime = runtime
        self._worker = Worker(runtime, "lockline-consul-listener", self._listen, idle)

    # -- telling -----------------------------------------------------------------------------------

    async def tell_new_holders(
        self, before: Iterable[ToldClaim], after: Iterable[ToldClaim], until: float, heir: str = ""
    ) -> None:
        """Tell those who hold in this line now and did not before, but not the heir, who knows it.

        Only a hint: who hears nothing finds out by looking.
        """
        held = {heir, *(claim.id for claim in holders(before))}
        called = [claim for claim in holders(after) if claim.id not in held]
        others: list[list[Step]] = []
        for claim in called:
            if claim.client == self._keys.client:
                self._call(claim.id)
            else:
                bell = f"{self._keys.notes_to(claim.id, claim.client)}bell"
                # Only while it stands: nobody would remove what is said to one that has left. Another text each time, or it would
                # not count as a change.
                put = commands.put(bell, claim.session, flags=secrets.randbits(32))
                others.append([commands.stands(claim), put])
        until = min(until, self._runtime.now() + A_CALL)
        try:
            for batch in commands.batches(others):
                if (await self._channel.transact([step for steps in batch for step in steps], until)).failed:
                    # One that has left, or whose session has ended, keeps nobody else from hearing it.
                    for steps in batch if len(batch) > 1 else ():
                        await self._channel.transact(steps, until)
        except LocklineError:
            pass  # the look of those who wait is the net below

    # -- listening ---------------------------------------------------------------------------------

    def listen(self) -> None:
        """From now on, until nobody here holds or waits any more."""
        if not self._query.ended:
            self._worker.by(self._runtime.now())

    async def _listen(self) -> float:
        if self._idle() or self._query.ended:
            return self._runtime.now() + A_QUERY
        try:
            for session in self._sessions.all():
                if not session.present:
                    await self.put_session(session, self._runtime.now() + A_QUERY)
            await self._hear()
        except (NoReply, LocklineError):
            self._query.drop()
            if not self._query.ended:
                await self._runtime.sleep(AFTER_A_FAILURE)
        except BaseException:
            self._query.drop()
            raise
        return self._runtime.now()

    async def put_session(self, session: ServerSession, until: float) -> None:
        """Put the session's key, so that it is seen to end."""
        step = commands.put(self._keys.session(session.id), session.id, flags=secrets.randbits(32))
        answer = await self._channel.transact([step], until)
        if answer.failed:
            self._sessions.lose(session)
        else:
            session.present = True

    async def _hear(self) -> None:
        present = [session for session in self._sessions.all() if session.present]
        entries, since = await self._query.ask()
        there = {entry["Key"] for entry in entries}
        for session in present:
            if self._keys.session(session.id) not in there:
                self._sessions.lose(session)
        for entry in entries:
            claim_id, _, word = entry["Key"][len(self._keys.home) :].partition("/")
            if word in ("bell", "evicted") and entry["ModifyIndex"] > since:
                self._tell(claim_id, word, entry["ModifyIndex"])

    async def stop(self, until: float) -> None:
        """End it: the query under way is cut."""
        self._query.end()
        await self._worker.stop(until)

    def forked(self) -> None:
        """In a child: the parent listens on."""
        self._query.forked()
