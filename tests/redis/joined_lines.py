"""One line of Redis, talked to by its scripts alone, together or one by one; and two of them compared."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import redis

from lockline.backends.redis.commands import PreparedLine, Wish, words
from lockline.backends.redis.joined import Bunch, Step, join
from lockline.backends.redis.scripts import ENTER, LEAVE, NO_CHANNEL
from lockline.backends.resp.commands import pack
from tests.servers.redis import RedisServer

STATE = struct.Struct("11d")
NUMBERS = ["n", "used", "least", "first", "until", "mixed", "head", "end", "watch", "sweep", "due"]
SOON = 10_000.0
"""Milliseconds by which the times of two lines may differ that were treated alike: no two ttls here are that close."""


def wish(ttl: float = 60.0, *, weight: int = 1, capacity: int = 1, channel: str = NO_CHANNEL) -> Wish:
    return (ttl, weight, capacity, channel, "lock", "me", "", True)


class Line:
    """One line, talked to by scripts alone."""

    def __init__(self, server: RedisServer, name: str) -> None:
        self.redis = redis.Redis(port=server.port)
        self.line = PreparedLine(f"{{ll:{name}}}".encode())
        self.key = self.line.key
        for script in (ENTER, LEAVE):
            self.redis.script_load(script.body)
        self._connection = self.redis.connection_pool.get_connection()

    def ask(self, *requests: bytes) -> list[Any]:
        self._connection.send_packed_command([b"".join(requests)])  # type: ignore[no-untyped-call]
        return [self._answer() for _ in requests]

    def _answer(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)
        except redis.ResponseError as problem:
            return problem

    def enter(self, claim_id: str, terms: Wish | None = None) -> Step:
        rest = pack(words(terms or wish())).partition(b"\r\n")[2]
        return Step(self.line, claim_id, "", rest)

    def leave(self, claim_id: str, heir: str) -> Step:
        return Step(self.line, claim_id, heir, b"")

    def one_by_one(self, steps: list[Step]) -> list[Any]:
        return self.ask(*(bytes(step) for step in steps))

    def together(self, steps: list[Step]) -> list[Any] | None:
        """The answers in the order of these steps; None if the script wants them one by one."""
        parcels = join(steps)
        assert parcels is not None
        (bunch,) = parcels
        assert isinstance(bunch, Bunch)
        # By what the server has surely seen.
        self.line.unjoined = True
        answers = bunch.spread(self.ask(bytes(bunch))[0])
        self.line.apart_until = 0.0
        if answers is None:
            return None
        spread = dict(zip(bunch.places, answers, strict=True))
        return [spread[place] for place in range(len(steps))]

    def everything(self) -> tuple[dict[bytes, bytes], int]:
        """All fields as they are, and when the key ends."""
        return self.redis.hgetall(self.key), int(self.redis.execute_command("PEXPIRETIME", self.key))  # type: ignore[return-value,no-untyped-call]

    def put(self, **numbers: float) -> None:
        """Change what the state says."""
        state = self.redis.hget(self.key, "state")
        assert isinstance(state, bytes)
        now = dict(zip(NUMBERS, STATE.unpack(state[: STATE.size]), strict=True))
        state = STATE.pack(*{**now, **numbers}.values()) + state[STATE.size :]
        self.redis.hset(self.key, "state", state)

    @property
    def now(self) -> float:
        seconds, micros = self.redis.time()
        return seconds * 1e3 + micros / 1e3


class Told:
    """A line with its times and tickets as they compare with another's: by order, and to about a moment."""

    def __init__(self, line: Line, since: float) -> None:
        fields, ends = line.everything()
        now = since
        tickets = sorted(int(value.split(b" ")[0]) for field, value in fields.items() if field[:1] in b"+~")
        self.rank = {ticket: rank for rank, ticket in enumerate(tickets)}
        self.fields: dict[bytes, Any] = {}
        self.times = {"key": ends - now}
        for field, value in fields.items():
            if field == b"state":
                numbers = (
                    dict(zip(NUMBERS, STATE.unpack(value[: STATE.size]), strict=True)) if value[:1] != b"+" else {}
                )
                if not numbers:
                    self.fields[field] = value
                    continue
                for name in ("first", "until", "watch", "due"):
                    moment = numbers.pop(name)
                    self.times[name] = moment - now if 0 < moment < 9e15 else moment
                behind = value[STATE.size :]
                # Whoever did not care has left it out.
                self.fields[field] = numbers, behind or fields.get(b"q%d" % numbers["head"], b"")
            elif field == b"last":
                self.fields[field] = self.rank.get(int(value), "before")
            elif field[:1] in b"+~":
                ticket, moment, ttl, seat, *rest = value.split(b" ")
                if field[:1] == b"+" and len(seat) > 12:
                    self.times[f"{field.decode()} granted"] = int(seat) / 1000 - now
                    seat = b""
                self.fields[field] = self.rank[int(ticket)], ttl, seat, *rest
                self.times[field.decode()] = int(moment) / 1000 - now
            elif field[:1] == b"-":
                self.times[field.decode()] = int(value) - now
            else:
                self.fields[field] = value

    def assert_like(self, other: Told) -> None:
        assert self.fields == other.fields
        assert self.times.keys() == other.times.keys()
        for name, moment in self.times.items():
            assert moment == pytest.approx(other.times[name], abs=SOON), name

    def answer(self, answer: Any) -> Any:
        """An answer without what differs from line to line."""
        if isinstance(answer, list):
            ahead, change, ticket, before = answer
            return ahead, pytest.approx(change, abs=SOON), self.rank[ticket], before
        return answer


def stand(line: Line, *ids: str, terms: Wish | None = None) -> None:
    """Have these stand there, in this order."""
    line.one_by_one([line.enter(each, terms) for each in ids])
