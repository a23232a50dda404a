"""What the least would cost: a fenced lock and a fair hand-over with nothing around them, on bare sockets."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import hiredis
import redis
from crowd import Locker

from lockline.backends.redis.commands import PreparedLine, key_of, words
from lockline.backends.redis.scripts import ENTER, LEAVE
from lockline.backends.resp.commands import Script, pack

TTL: Final = "10000"

TAKE: Final = Script("""
local time = redis.call('TIME')
local found = redis.call('HMGET', KEYS[1], 'last', 'holder')
if found[2] then return false end
local token = time[1] * 1000000 + time[2]
if found[1] and tonumber(found[1]) >= token then token = found[1] + 1 end
redis.call('HSET', KEYS[1], 'last', string.format('%.0f', token), 'holder', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token
""")

GIVE: Final = Script("""
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'holder')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
""")


class Wire:
    """One plain socket and hiredis."""

    def __init__(self, port: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def ask(self, request: bytes) -> Any:
        self._socket.sendall(request)
        return self.read()

    def read(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        return reply


class FencedLock(Wire):
    """The least that a fenced lock with an expiry needs: a token that goes up, a holder, two scripts. Nobody can wait for it."""

    def __init__(self, port: str) -> None:
        super().__init__(port)
        with redis.Redis(port=int(port)) as client:
            for script in (TAKE, GIVE):
                client.script_load(script.body)
        name = f"holder-{os.getpid()}"
        self._take = TAKE.by_digest(("least",), (name, TTL))
        self._give = GIVE.by_digest(("least",), (name, TTL))

    def __enter__(self) -> None:
        assert isinstance(self.ask(self._take), int)

    def __exit__(self, *_: object) -> None:
        assert self.ask(self._give) == 1


class HandOver(Wire):
    """The least that a fair hand-over needs: one word in a list, and those who wait for it in a row. No ttl, no token."""

    _take = hiredis.pack_command(("BLPOP", "baton", "0"))  # type: ignore[arg-type]
    _give = hiredis.pack_command(("RPUSH", "baton", "1"))  # type: ignore[arg-type]

    def __init__(self, port: str) -> None:
        super().__init__(port)
        if self.ask(hiredis.pack_command(("SET", "baton-made", "1", "NX"))):  # type: ignore[arg-type]
            self.ask(self._give)

    def __enter__(self) -> None:
        self.ask(self._take)

    def __exit__(self, *_: object) -> None:
        self.ask(self._give)


class OwnRequests(Wire):
    """What Lockline asks for, with nothing around it: no keeper, no deadline, no second thread, no answer that may be lost."""

    def __init__(self, port: str) -> None:
        super().__init__(port)
        with redis.Redis(port=int(port)) as client:
            for script in (ENTER, LEAVE):
                client.script_load(script.body)
        self._turns = Wire(port)
        channel = f"ll:{secrets.token_hex(6)}"
        self._turns.ask(pack(("SUBSCRIBE", channel)))
        self._line = PreparedLine(key_of("own-requests"))
        wish = (float(TTL) / 1000, 1, 1, channel, "lock", f"pid {os.getpid()}", "", True)
        self._wish = pack(words(wish)).partition(b"\r\n")[2]
        self._ids = (f"{channel[3:]}-{number}" for number in itertools.count())

    def __enter__(self) -> None:
        self._id = next(self._ids)
        mine = self._id.encode()
        answer = self.ask(b"%b$%d\r\n%b\r\n%b" % (self._line.enter, len(mine), mine, self._wish))
        assert isinstance(answer, (int, list)), answer
        if isinstance(answer, list):
            assert self._turns.read()[2].startswith(mine)

    def __exit__(self, *_: object) -> None:
        assert self.ask(self._line.request_to_leave(self._id)) == 1


@contextmanager
def fenced_locker(port: str) -> Iterator[Locker]:
    lock = FencedLock(port)
    yield lambda: lock


@contextmanager
def hand_over_locker(port: str) -> Iterator[Locker]:
    lock = HandOver(port)
    yield lambda: lock


@contextmanager
def own_requests_locker(port: str) -> Iterator[Locker]:
    lock = OwnRequests(port)
    yield lambda: lock
