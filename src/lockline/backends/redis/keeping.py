"""What is kept beside a line, written under the token: one hash in the same slot as the line, with a time to live.

mark     the highest token that was here
token, value, written, expires
         what is kept, under which token, since when and until when by the server's clock, in microseconds
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
# In: the token, for how many milliseconds, the value. Out: 1, or 0 if a higher token was here.
KEEP: Final = Script(
    _TIME
    + """
if tonumber(redis.call('HGET', KEYS[1], 'mark') or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'mark', ARGV[1], 'token', ARGV[1], 'value', ARGV[3], 'written', string.format('%.0f', micros),
  'expires', string.format('%.0f', micros + ARGV[2] * 1000))
live_on(tonumber(ARGV[2]))
return 1
"""
)


async def look(channel: Channel, key: bytes, token: int, ttl: float, until: float) -> Record:
    """What is kept there; with a token, nobody with a lower one writes from now on."""
    call = Call(KEPT, (key,), (str(token), _millis(ttl)))
    now, *kept = (await channel.run(call, until)).value
    if not kept:
        return Record(int(now) / 1e6)
    value, under, written, expires = kept
    return Record(int(now) / 1e6, value, int(under), int(written) / 1e6, int(expires) / 1e6)


async def keep(channel: Channel, key: bytes, value: bytes, token: int, ttl: float, until: float) -> bool:
    """Keep it, if no higher token was there; a repeat writes the same."""
    call = Call(KEEP, (key,), (str(token), _millis(ttl), value))
    return bool((await channel.run(call, until)).value)


def _millis(seconds: float) -> str:
    return str(math.ceil(seconds * 1000))
