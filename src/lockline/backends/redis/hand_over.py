"""The Lua of a hand-over: a claim takes the place of one that holds, and whoever waits gets a higher ticket, in the same order."""

from __future__ import annotations

import json
import math
from typing import Final

from ...core.claim import Claim, Gone, Grant, Waiting
from .channel import Call, Channel
from .claims import Doubts
from .scripts import _script
from .step import CLOCK, STEP, TIME

NOBODY_THERE: Final = 0
WAITS: Final = -1

# In: the id of the one that holds, of the one that comes, its ttl, its channel, what people see of it.
# Out: its ticket; NOBODY_THERE if there is no such one, or it was withdrawn before it came; WAITS if the one there waits.
# Work for each who waits: rare, and the price for tickets that cost nothing while nobody hands over.
HAND_OVER: Final = _script(
    TIME,
    CLOCK,
    STEP,
    """
local old, id, ttl = ARGV[1], ARGV[2], ARGV[3]
local state = redis.call('HGET', KEYS[1], 'state')
if not state or not redis.call('HGET', KEYS[1], 'last') then return 0 end
open(KEYS[1], state)
drop_expired()
admit()
save()
local found = redis.call('HMGET', KEYS[1], 'state', 'last', '+' .. old, '+' .. id, '~' .. old, '-' .. id)
if found[4] then return parse(found[4]).ticket end
if found[6] and tonumber(string.match(found[6], '^%d+')) > now then return 0 end
if not found[3] then return found[5] and -1 or 0 end
open(KEYS[1], found[1])
local c = parse(found[3])
c.ticket, c.since, c.ttl, c.expires, c.seat, c.channel, c.info =
  math.max(found[2] + 1, micros), clock, ttl, now + ttl, '0', ARGV[4], ARGV[5]
redis.call('HDEL', line, '+' .. old)
redis.call('HSET', line, '+' .. id, written(c))
recount()
local all, waiters = redis.call('HGETALL', line), {}
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 1) == '~' then
    local w = parse(all[i + 1])
    w.field = all[i]
    waiters[#waiters + 1] = w
  end
end
table.sort(waiters, function(a, b) return tonumber(a.seat) < tonumber(b.seat) end)
for at, w in ipairs(waiters) do
  w.ticket = c.ticket + at
  put(w.field, written(w))
end
put('last', string.format('%.0f', c.ticket + #waiters))
cover(c.expires)
-- It may expire before whoever waits has planned to look.
s.let_in = true
save()
return c.ticket
""",
)


async def ask(
    channel: Channel, doubts: Doubts, key: bytes, old: str, claim: Claim, told_on: str, until: float
) -> Grant | Waiting | Gone:
    """Ask the server for it; if no answer came, a request may still be under way when the claim leaves."""
    about = f"{claim.ttl} {claim.kind} {json.dumps(claim.owner)}{claim.meta}"
    args = (old, claim.id, str(math.ceil(claim.ttl * 1000)), told_on, about)
    try:
        ticket, repeated, _ = await channel.run(Call(HAND_OVER, (key,), args), until)
    except BaseException as problem:
        if not getattr(problem, "unsent", False):
            doubts.add(claim.id)
        raise
    if repeated:
        doubts.add(claim.id)
    if ticket == WAITS:
        return Waiting(0)
    return Gone() if ticket == NOBODY_THERE else Grant(ticket)
