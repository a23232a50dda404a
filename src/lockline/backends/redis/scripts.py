"""The Lua of the Redis backend: one atomic step per request, on the one key that is a line.

A line is one hash, so that a cluster can move it, a server can evict it, and a person can delete it only as a whole:

    state    eleven numbers as packed doubles, absent while nobody stands in the line: n used least first until mixed head
             end watch sweep due
             n holders of `used` weight together, `least` is the smallest capacity among them (`mixed` if they differ);
             no holder expires before `first`; the key lives until `until`;
             seats from `head` up to `end` are the waiting line, some of them empty;
             by `watch` whoever waits will have looked by itself;
             nobody who waits expires before `due`; then the seats are swept, from `sweep` on if a round is under way
    last     the last ticket
    +id      a claim that holds: "ticket expires weight capacity seat channel info"
    ~id      a claim that waits: the same
    q<seat>  the id of who waits there; at both ends of a run of empty seats "!first last", which no id looks like
    -id      a claim that was withdrawn before it arrived, and until when that is remembered
    =id      an eviction that was done: until when that is remembered, and how many it hit
    notes    two numbers, absent while there is none of these two: they stand in order of their age
    o<n>     from the first number up to the second: the field of the note

Every line has its `last`; a hash without it is somebody else's, and is left alone.

All times are the server's own, in milliseconds; tickets are its clock in microseconds, or the last ticket plus one.
Each step first drops whoever has expired, so what it sees is what the rule sees.
The work of a step depends neither on how many wait nor on how many did: a run of empty seats is passed in one go, and
what the dead have left is cleared away some at a time, by whatever step comes next.
"""

from __future__ import annotations

from typing import Final

from ..resp.commands import Script
from .step import STEP

REMEMBERED: Final = 10
"""Seconds for which an idle line remembers its last ticket: a server clock may step back by that much."""

NO_CHANNEL: Final = "-"
"""Stands in a record for the channel of a client that does not listen (yet)."""

A_FEW: Final = 100
"""Seats and notes that one step looks at to clear them away: well under a millisecond of the server's time."""

STATE: Final = "'" + 11 * "d" + "'"
NEVER: Final = "9e15"
"""Later than any time of a server."""

FOREIGN: Final = "{ err = 'WRONGTYPE this hash is no line' }"

NEEDS_NO_MEMORY: Final = """
-- A server that is out of memory refuses a script's first write if that might need some. What follows gives memory back or
-- keeps what it has, so it begins with a write that needs none, and changes nothing.
redis.pcall('HDEL', KEYS[1], '')
"""


_WORDS: Final = {
    "REMEMBERED": str(REMEMBERED * 1000), "FOREIGN": FOREIGN, "A_FEW": str(A_FEW), "STATE": STATE, "NEVER": NEVER,
}  # fmt: skip
"""What stands in the Lua for a value that is said here."""


_TIME: Final = """
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
"""


def _script(*parts: str) -> Script:
    body = "".join((_TIME, *parts))
    for word, meaning in _WORDS.items():
        body = body.replace(word, meaning)
    return Script(body)


# In: id, ttl, weight, capacity, channel, info, "1" if it may wait. Out: the ticket if it holds, {ahead, change} if it
# waits, nothing if it may not.
ENTER: Final = _script(
    """
local id = ARGV[1]
local found = redis.call('HMGET', KEYS[1], 'state', 'last', '+' .. id, '~' .. id, '-' .. id, 'notes')
local ticket = micros
if found[2] and tonumber(found[2]) >= micros then ticket = tonumber(found[2]) + 1 end
local expires = math.ceil(micros / 1000) + ARGV[2]
if not found[2] and #redis.call('HGETALL', KEYS[1]) > 0 then return FOREIGN end

-- Nobody stands here: the common case, kept short.
if not found[1] and not found[6] and not found[4] and tonumber(ARGV[3]) <= tonumber(ARGV[4]) then
  local number, key_until = string.format('%.0f', ticket), expires + REMEMBERED
  redis.call('HSET', KEYS[1], 'last', number,
    '+' .. id, string.format('%s %.0f %s %s 0 %s ', number, expires, ARGV[3], ARGV[4], ARGV[5]) .. ARGV[6],
    'state', struct.pack(STATE, 1, ARGV[3], ARGV[4], expires, key_until, 0, 1, 1, 0, 0, NEVER))
  redis.call('PEXPIREAT', KEYS[1], key_until)
  return ticket
end

-- Full, and nothing else to do than to stand at the end: the other common case, kept short as well.
if found[1] and ARGV[7] == '1' and not (found[3] or found[4] or found[5]) then
  local n, used, least, first, key_until, mixed, head, seats_end, watch, sweep, due = struct.unpack(STATE, found[1])
  if used >= least and micros / 1000 < first then
    local number, seat = string.format('%.0f', ticket), string.format('%d', seats_end)
    local stretch = expires + REMEMBERED > key_until
    if stretch then key_until = expires + REMEMBERED end
    if first > watch then watch = first end
    if expires < due then due = expires end
    redis.call('HSET', KEYS[1], 'last', number, 'q' .. seat, id,
      '~' .. id, string.format('%s %.0f %s %s %s %s ', number, expires, ARGV[3], ARGV[4], seat, ARGV[5]) .. ARGV[6],
      'state', struct.pack(STATE, n, used, least, first, key_until, mixed, head, seats_end + 1, watch, sweep, due))
    if stretch then redis.call('PEXPIREAT', KEYS[1], key_until) end
    return { n + seats_end - head, math.ceil(first - micros / 1000) }
  end
end
""",
    STEP,
    """
-- It was withdrawn before it came; whoever sent it waits for it no more.
if found[5] and tonumber(found[5]) > now then return false end
open(KEYS[1], found[1])
drop_expired()
if found[3] then
  local c = parse(found[3])
  if c.expires > now then return c.ticket end
end
if found[4] then
  local c = parse(found[4])
  if c.expires > now then
    admit(id)
    local answer = s.let_me_in and c.ticket or waiting(c.seat)
    save()
    return answer
  end
  leave_seat(id, c.seat)
end
admit()
local c = {
  ticket = ticket, expires = expires, weight = tonumber(ARGV[3]), capacity = tonumber(ARGV[4]),
  seat = '0', channel = ARGV[5], info = ARGV[6],
}
local room = s.n == 0 and c.capacity or math.min(s.least, c.capacity)
if s.head == s.seats_end and s.used + c.weight <= room then
  put('last', string.format('%.0f', ticket))
  put('+' .. id, written(c))
  count_in(c)
  cover(expires)
  save()
  return ticket
end
if ARGV[7] ~= '1' then
  save()
  return false
end
c.seat = string.format('%d', s.seats_end)
s.seats_end = s.seats_end + 1
s.due = math.min(s.due, expires)
put('last', string.format('%.0f', ticket))
put('q' .. c.seat, id)
put('~' .. id, written(c))
cover(expires)
local answer = waiting(c.seat)
save()
return answer
""",
)

# In: id, "1" if it may still be under way. Out: 1 if it was there, else 0.
LEAVE: Final = _script(
    """
local id = ARGV[1]
local found = redis.call('HMGET', KEYS[1], 'state', '+' .. id, '~' .. id)

-- The only one here: the common case, kept short.
if found[1] and found[2] and ARGV[2] ~= '1' then
  local n, used, least, first, key_until, mixed, head, seats_end, watch, sweep, due = struct.unpack(STATE, found[1])
  if n == 1 and head == seats_end then
    redis.call('HDEL', KEYS[1], 'state', '+' .. id)
    redis.call('PEXPIRE', KEYS[1], REMEMBERED)
    if tonumber(string.match(found[2], '^%d+ (%d+)')) > micros / 1000 then return 1 end
    return 0
  end
  -- One holder hands over to one that needs all there is, lives, and hears: the other common case.
  local now = micros / 1000
  local next_id = n == 1 and now < first and redis.call('HGET', KEYS[1], 'q' .. head)
  local record = next_id and redis.call('HGET', KEYS[1], '~' .. next_id)
  if record then
    local ticket, expires, weight, capacity, channel = string.match(record, '^(%d+) (%d+) (%d+) (%d+) %d+ (%S+) ')
    expires = tonumber(expires)
    if weight == capacity and expires > now and expires + 250 >= watch
      and (channel == '-' or redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0) then
      -- First the write: a server that may not write (a replica by now, or one without enough of them) refuses it here,
      -- and has told nobody anything.
      redis.call('HDEL', KEYS[1], '+' .. id, '~' .. next_id, 'q' .. head)
      if channel ~= '-' then redis.call('PUBLISH', channel, next_id .. ' ' .. ticket) end
      head = head + 1
      if head == seats_end then head, seats_end, watch, sweep, due = 1, 1, 0, 0, NEVER end
      redis.call('HSET', KEYS[1], '+' .. next_id, record,
        'state', struct.pack(STATE, 1, weight, capacity, expires, key_until, 0, head, seats_end, watch, sweep, due))
      return 1
    end
  end
end
""",
    STEP,
    NEEDS_NO_MEMORY,
    """
local last = redis.call('HGET', KEYS[1], 'last')
if not last and (ARGV[2] ~= '1' or #redis.call('HGETALL', KEYS[1]) > 0) then return 0 end
open(KEYS[1], found[1])
local there = 0
local record = found[2] or found[3]
if record then
  local c = parse(record)
  if c.expires > now then there = 1 end
  if not found[2] then
    leave_seat(id, c.seat)
  else
    redis.call('HDEL', line, '+' .. id)
    if found[1] then count_out(c) end
  end
end
if ARGV[2] == '1' then
  -- A request of it may still be on the way: it shall find this when it comes.
  if not last then redis.call('HSET', line, 'last', '0') end
  make_note('-' .. id, '')
  if not found[1] then redis.call('PEXPIRE', line, REMEMBERED) end
end
if not found[1] then return there end
drop_expired()
admit()
save()
return there
""",
)

# In: id, channel, "1" to write even where nothing changes (so that WAIT has something to wait for).
# Out: the ticket if it holds, {ahead, change} if it waits, nothing if it is gone.
PLACE: Final = _script(
    """
local id = ARGV[1]
local found = redis.call('HMGET', KEYS[1], 'state', '+' .. id, '~' .. id)
local record = found[2] or found[3]
if not record then return false end
""",
    STEP,
    NEEDS_NO_MEMORY,
    """
open(KEYS[1], found[1])
drop_expired()
local c = parse(record)
if c.expires <= now then
  if not found[2] then leave_seat(id, c.seat) end
  admit()
  save()
  return false
end
if c.channel ~= ARGV[2] or ARGV[3] == '1' then
  c.channel = ARGV[2]
  redis.call('HSET', line, (found[2] and '+' or '~') .. id, written(c))
end
if found[2] then return c.ticket end
admit(id)
local answer = s.let_me_in and c.ticket or waiting(c.seat)
save()
return answer
""",
)

# In: channel (or NO_CHANNEL to leave it as it is), then for each key: id, ttl, weight, kind.
# Out for each: 0 if it is gone, 1 if it holds, if it waits -milliseconds until something may change by itself.
RENEW: Final = _script(
    STEP,
    NEEDS_NO_MEMORY,
    """
local function renew(key, id, ttl, weight, kind)
  -- What somebody else put in the place of one line must not concern the others.
  local found = redis.pcall('HMGET', key, 'state', '+' .. id, '~' .. id)
  if found.err then return string.find(found.err, 'WRONGTYPE', 1, true) and 0 or found end
  local record = found[2] or found[3]
  if not record then return 0 end
  open(key, found[1])
  local c = parse(record)
  if c.expires <= now then
    if not found[2] then leave_seat(id, c.seat) end
    drop_expired()
    admit()
    save()
    return 0
  end
  c.expires = math.max(c.expires, math.ceil(now) + ttl)
  if ARGV[1] ~= '-' then c.channel = ARGV[1] end
  if weight < c.weight then
    -- Only ever downwards: what is given back here may let others in.
    if found[2] then s.used = s.used - c.weight + weight end
    c.weight = weight
    c.info = string.gsub(c.info, '^(%S+) %S+', '%1 ' .. kind)
  end
  redis.call('HSET', line, (found[2] and '+' or '~') .. id, written(c))
  cover(c.expires)
  if found[2] and s.n == 1 then s.first = c.expires end
  drop_expired()
  admit(id)
  local answer = 1
  if not found[2] and not s.let_me_in then answer = -waiting(c.seat)[2] end
  save()
  return answer
end

local fates = {}
for i = 1, #KEYS do
  local at = i * 4 - 2
  fates[i] = renew(KEYS[i], ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3])
end
return fates
""",
)

_UP_TO_DATE: Final = """
local found = redis.call('HMGET', KEYS[1], 'state', 'last')
local used = found[1] and found[2]
if used then
  open(KEYS[1], found[1])
  drop_expired()
  admit()
  save()
end
"""

# Out: the server's time in milliseconds, then every field with its value.
LOOK: Final = _script(
    STEP,
    NEEDS_NO_MEMORY,
    _UP_TO_DATE,
    """
local all = redis.call('HGETALL', KEYS[1])
if #all > 0 and not found[2] then return FOREIGN end
table.insert(all, 1, string.format('%.3f', now))
return all
""",
)

# Out: how many hold.
ALIVE: Final = _script(STEP, NEEDS_NO_MEMORY, _UP_TO_DATE, "return used and s.n or 0")

# In: an id of this eviction, so that a repeat does not hit whoever came after its victims; the token of the one that is
# meant, or nothing if all are.
# Out: how many held, and were told that they do no more.
EVICT: Final = _script(
    STEP,
    """
local note = '=' .. ARGV[1]
local found = redis.call('HMGET', KEYS[1], 'state', 'last', note)
if found[3] then return tonumber(string.match(found[3], '%d+$')) end
if not (found[1] and found[2]) then return 0 end
open(KEYS[1], found[1])
local victims = 0
local all = redis.call('HGETALL', line)
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 1) == '+' then
    local c = parse(all[i + 1])
    if c.expires > now and (ARGV[2] == '' or c.ticket == tonumber(ARGV[2])) then
      redis.call('HDEL', line, all[i])
      if c.channel ~= '-' then redis.call('PUBLISH', c.channel, string.sub(all[i], 2)) end
      victims = victims + 1
    end
  end
end
recount()
if victims > 0 then make_note(note, ' ' .. victims) end
admit()
save()
return victims
""",
)

ALL: Final = (ENTER, LEAVE, PLACE, RENEW, LOOK, ALIVE, EVICT)
