"""What is kept beside a line, written under the token: one hash in the same slot as the line, with a time to live.

mark     the highest token that was here
token, value, written, expires
         what is kept, under which token, since when and until when by the server's clock, in microseconds

Whoever waits in the line is sent a small value as it is written, on the channel that will wake it:
"= token written expires length key value", with the length of the key, and nothing between key and value.
"""

from __future__ import annotations

import math
from typing import Final

from ...core.claim import Record
from ..resp.commands import Script
from .channel import Call, Channel

_TIME: Final = """
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local function live_on(millis)
  if redis.call('PTTL', KEYS[1]) < millis then redis.call('PEXPIRE', KEYS[1], string.format('%.0f', millis)) end
end
"""
# In: a token or 0, and for how many milliseconds it is to be remembered.
KEPT: Final = Script(
    _TIME
    + """
local found = redis.call('HMGET', KEYS[1], 'mark', 'token', 'value', 'written', 'expires')
if tonumber(ARGV[1]) > tonumber(found[1] or '0') then
  redis.call('HSET', KEYS[1], 'mark', ARGV[1])
  live_on(tonumber(ARGV[2]))
end
local now = string.format('%.0f', micros)
if not found[3] or tonumber(found[5]) <= micros then return { now } end
return { now, found[3], found[2], found[4], found[5] }
"""
)
SENT_ALONG: Final = 1 << 16
"""Bytes of a value that is sent to everybody who waits; of a larger one each fetches its own when it is its turn."""
LONGEST_LINE: Final = 1000
"""Claims in a line that is still read through for who waits there."""
# In: the token, for how many milliseconds, the value. Out: 1, or 0 if a higher token was here.
KEEP: Final = Script(
    _TIME
    + """
if tonumber(redis.call('HGET', KEYS[1], 'mark') or '0') > tonumber(ARGV[1]) then return 0 end
local written, expires = string.format('%.0f', micros), string.format('%.0f', micros + ARGV[2] * 1000)
redis.call('HSET', KEYS[1], 'mark', ARGV[1], 'token', ARGV[1], 'value', ARGV[3], 'written', written, 'expires', expires)
live_on(tonumber(ARGV[2]))
local length = #ARGV[3] <= SENT_ALONG and redis.pcall('HLEN', KEYS[2])
if type(length) ~= 'number' or length < 4 or length > LONGEST_LINE then return 1 end
local line, sent = redis.call('HGETALL', KEYS[2]), {}
for at = 1, #line, 2 do
  local channel = string.byte(line[at]) == 126 and string.match(line[at + 1], '^%S+ %S+ %S+ %S+ %S+ %S+ (%S+)')
  if channel and channel ~= '-' and not sent[channel] then
    sent[channel] = true
    redis.pcall('PUBLISH', channel, table.concat({ '=', ARGV[1], written, expires, #KEYS[1], KEYS[1] .. ARGV[3] }, ' '))
  end
end
return 1
""".replace("SENT_ALONG", str(SENT_ALONG)).replace("LONGEST_LINE", str(2 * LONGEST_LINE))
)


def _key_beside(line: bytes, what: str) -> bytes:
    """Under which it is kept: in the slot of the line."""
    return line + b":" + what.encode()


async def look(channel: Channel, line: bytes, what: str, token: int, ttl: float, until: float) -> Record:
    """What is kept there; with a token, nobody with a lower one writes from now on."""
    call = Call(KEPT, (_key_beside(line, what),), (str(token), _millis(ttl)))
    now, *kept = (await channel.run(call, until)).value
    if not kept:
        return Record(int(now) / 1e6)
    value, under, written, expires = kept
    return Record(int(now) / 1e6, value, int(under), int(written) / 1e6, int(expires) / 1e6)


async def keep(channel: Channel, line: bytes, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
    """Keep it, if no higher token was there; a repeat writes the same."""
    call = Call(KEEP, (_key_beside(line, what), line), (str(token), _millis(ttl), value))
    return bool((await channel.run(call, until)).value)


class Expected:
    """What this client's waiting claims have been sent, by the key under which it is kept."""

    def __init__(self) -> None:
        self._records: dict[bytes, Record | None] = {}

    def expect(self, line: bytes, what: str) -> None:
        self._records[_key_beside(line, what)] = None

    def take(self, line: bytes, what: str) -> Record | None:
        return self._records.pop(_key_beside(line, what), None)

    def take_note(self, message: str) -> None:
        """The bytes of a message, as Latin-1; what nobody expects is forgotten."""
        _, token, written, expires, length, rest = message.split(" ", 5)
        data = rest.encode("latin-1")
        key, value = data[: int(length)], data[int(length) :]
        if key in self._records:
            at = int(written) / 1e6
            self._records[key] = Record(at, value, int(token), at, int(expires) / 1e6)


def _millis(seconds: float) -> str:
    return str(math.ceil(seconds * 1000))
