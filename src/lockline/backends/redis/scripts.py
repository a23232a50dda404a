"""The Lua of the Redis backend: one atomic step per request, on the one key that is a line.

What a line is made of says `step.py`. All times are the server's own, in milliseconds; tickets are its clock in microseconds, or the last ticket plus one.
Each step first drops whoever has expired, so what it sees is what the rule sees.
The work of a step depends neither on how many wait nor on how many did.
Most of what a server spends on a lock is the fixed cost of each command in a script, then of building strings: so the
common cases come first, before any function is made, ask for all at once, and write what the client has put together.
"""

from __future__ import annotations

from typing import Final

from ..resp.commands import Script
from .step import CLOCK, NEEDS_NO_MEMORY, NEVER, NUMBERS, STATE, STEP, TIME

REMEMBERED: Final = 10
"""Seconds for which an idle line remembers its last ticket at least: a server clock may step back by that much."""
LINGERS: Final = 4 * REMEMBERED
"""Seconds that an idle line may last: a release does not shorten the life of a key that ends sooner by itself."""

NO_CHANNEL: Final = "-"
"""Stands in a record for the channel of a client that does not listen (yet)."""

A_FEW: Final = 100
"""Seats and notes that one step looks at to clear them away: well under a millisecond of the server's time."""

FOREIGN: Final = "{ err = 'WRONGTYPE this hash is no line' }"

_WORDS: Final = {
    "REMEMBERED": str(REMEMBERED * 1000), "SPARE": str(2 * REMEMBERED * 1000), "LINGERS": str(LINGERS * 1000), "FOREIGN": FOREIGN, "A_FEW": str(A_FEW), "STATE": STATE, "NEVER": NEVER,
}  # fmt: skip
"""What stands in the Lua for a value that is said here."""


def _script(*parts: str) -> Script:
    body = "".join(parts)
    for word, meaning in _WORDS.items():
        body = body.replace(word, meaning)
    return Script(body)


# In: id, ttl, "weight capacity channel info", "1" if it may wait, how long the key has to live for it. Out: the ticket if
# it holds, {ahead, change, ticket, who is directly ahead} if it waits, nothing if it may not.
ENTER: Final = _script(
    TIME,
    CLOCK,
    """
local id, mine = ARGV[1], '+' .. ARGV[1]
local found = redis.call('HMGET', KEYS[1], 'state', 'last', 'notes', mine, '~' .. id)
local state, last, notes = found[1], found[2], found[3]
local ticket, number = micros, clock
if not last then
  if #redis.call('HGETALL', KEYS[1]) > 0 then return FOREIGN end
elseif tonumber(last) >= micros then
  ticket = last + 1
  number = string.format('%.0f', ticket)
end
local times = number .. ' ' .. clock .. ' ' .. ARGV[2] .. ' '

-- Nobody stands here: the common case, kept short.
if not state and not notes then
  state = mine
  if tonumber(ARGV[5]) > LINGERS then
    local weight, capacity = string.match(ARGV[3], '^(%d+) (%d+)')
    state = struct.pack(STATE, 1, weight, capacity, now + ARGV[2], now + ARGV[5], 0, 1, 1, 0, 0, NEVER) .. mine
  end
  redis.call('HSET', KEYS[1], 'last', number, 'state', state, mine, times .. '0 ' .. ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  return ticket
end
""",
    NUMBERS,
    """
-- Full, and nothing else to do than to stand at the end: the other common case, kept short as well.
if state and not (found[4] or found[5] or notes and redis.call('HGET', KEYS[1], '-' .. id)) then
  local n, used, least, first, key_until, mixed, head, seats_end, watch, sweep, due, at = numbers(KEYS[1], state)
  if used >= least and now < first then
    if ARGV[4] ~= '1' then return false end
    local expires, seat, next_id = now + ARGV[2], '' .. seats_end, head == seats_end and id or string.sub(state, at)
    local stretch = now + ARGV[5] > key_until
    if stretch then key_until = expires + SPARE end
    if first > watch then watch = first end
    if expires < due then due = expires end
    redis.call('HSET', KEYS[1], 'last', number, 'q' .. seat, id, '~' .. id, times .. seat .. ' ' .. ARGV[3],
      'state', struct.pack(STATE, n, used, least, first, key_until, mixed, head, seats_end + 1, watch, sweep, due) .. next_id)
    if stretch then redis.call('PEXPIREAT', KEYS[1], math.ceil(key_until)) end
    local before = string.sub(state, string.byte(state) == 43 and 2 or at + 1)
    if head < seats_end then before = redis.call('HGET', KEYS[1], 'q' .. seats_end - 1) end
    return { n + seats_end - head, math.ceil(first - now), ticket, before }
  end
end
""",
    STEP,
    """
-- It was withdrawn before it came; whoever sent it waits for it no more.
local withdrawn = notes and redis.call('HGET', KEYS[1], '-' .. id)
if withdrawn and tonumber(withdrawn) > now then return false end
open(KEYS[1], state)
drop_expired()
if found[4] then
  local c = parse(found[4])
  if c.expires > now then return c.ticket end
end
if found[5] then
  local c = parse(found[5])
  if c.expires > now then
    admit(id)
    local answer = s.let_me_in and c.ticket or waiting(c)
    save()
    return answer
  end
  leave_seat(id, c.seat)
end
admit()
local record = times .. '0 ' .. ARGV[3]
local c = parse(record)
local room = s.n == 0 and c.capacity or math.min(s.least, c.capacity)
if s.head == s.seats_end and s.used + c.weight <= room then
  put('last', number)
  put(mine, record)
  count_in(c, mine)
  cover(c.expires)
  save()
  return ticket
end
if ARGV[4] ~= '1' then
  save()
  return false
end
local seat = '' .. s.seats_end
s.seats_end = s.seats_end + 1
s.due = math.min(s.due, c.expires)
put('last', number)
put('q' .. seat, id)
put('~' .. id, times .. seat .. ' ' .. ARGV[3])
cover(c.expires)
c.seat = seat
local answer = waiting(c)
save()
return answer
""",
)

# In: id, "1" if it may still be under way, and the id of whom its client has let in already, or nothing.
# Out: 1 if it was there, else 0.
LEAVE: Final = _script(
    """
local id, mine = ARGV[1], '+' .. ARGV[1]
local state = redis.call('HGET', KEYS[1], 'state')

-- The only one here: the common case, kept short. Its own clock has told it whether its time was over; here it counts that
-- nobody came in between.
if state == mine and ARGV[2] ~= '1' then
  redis.call('HDEL', KEYS[1], 'state', mine)
  return 1
end
""",
    TIME,
    """
if state and state ~= mine and ARGV[2] ~= '1' and string.byte(state) ~= 43 then
  local n, used, least, first, key_until, mixed, head, seats_end, watch, sweep, due, at = struct.unpack(STATE, state)
  local next_id = string.sub(state, at)
  if next_id == '' and head < seats_end then next_id = redis.call('HGET', KEYS[1], 'q' .. head) or '' end
  local found = redis.call('HMGET', KEYS[1], mine, '~' .. next_id, 'q' .. head + 1)
  if found[1] and n == 1 and head == seats_end then
    redis.call('HDEL', KEYS[1], 'state', mine)
    redis.call('PEXPIRE', KEYS[1], REMEMBERED)
    return 1
  end
  -- One holder hands over to one that needs all there is, lives, and hears: the other common case.
  if found[1] and found[2] and n == 1 and now < first then
    local ticket, since, ttl, seat, rest, weight, capacity, channel =
      string.match(found[2], '^(%d+) (%d+) (%d+) ()%d+() (%d+) (%d+) (%S+) ')
    local expires = since / 1000 + ttl
    if weight == capacity and expires > now and expires + 250 >= watch
      and (channel == '-' or next_id == ARGV[3] or redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0) then
      -- First the write: a server that may not write (a replica by now, or one without enough of them) refuses it here,
      -- and has told nobody anything. And where this user may tell nobody, it is done all the same.
      redis.call('HDEL', KEYS[1], mine, '~' .. next_id, 'q' .. head)
      if channel ~= '-' and next_id ~= ARGV[3] then redis.pcall('PUBLISH', channel, next_id .. ' ' .. ticket) end
      head = head + 1
      if head < seats_end then
        state = struct.pack(STATE, 1, weight, capacity, expires, key_until, 0, head, seats_end, watch, sweep, due)
          .. (found[3] or '')
      elseif key_until > now + LINGERS then
        state = struct.pack(STATE, 1, weight, capacity, expires, key_until, 0, 1, 1, 0, 0, NEVER) .. '+' .. next_id
      else
        state = '+' .. next_id
      end
      local record = string.sub(found[2], 1, seat - 1) .. time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
        .. string.sub(found[2], rest)
      redis.call('HSET', KEYS[1], '+' .. next_id, record, 'state', state)
      return 1
    end
  end
end
""",
    STEP,
    NEEDS_NO_MEMORY,
    """
local found = redis.call('HMGET', KEYS[1], 'last', mine, '~' .. id)
local last, record = found[1], found[2]
if not last and (ARGV[2] ~= '1' or #redis.call('HGETALL', KEYS[1]) > 0) then return 0 end
local waits = not record and found[3]
open(KEYS[1], state)
local there = 0
if record or waits then
  local c = parse(record or waits)
  if c.expires > now then there = 1 end
  if waits then
    leave_seat(id, c.seat)
  else
    redis.call('HDEL', line, mine)
    if state then count_out(c) end
    s.made_way, s.heir = id, ARGV[3]
  end
end
if ARGV[2] == '1' then
  -- A request of it may still be on the way: it shall find this when it comes.
  if not last then redis.call('HSET', line, 'last', '0') end
  make_note('-' .. id, '')
  if not state then redis.call('PEXPIRE', line, REMEMBERED) end
end
if not state then return there end
drop_expired()
admit()
save()
return there
""",
)

# In: id, channel, "1" to write even where nothing changes (so that WAIT has something to wait for).
# Out: the ticket if it holds, {ahead, change, ticket, who is directly ahead} if it waits, nothing if it is gone.
PLACE: Final = _script(
    TIME,
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
local answer = s.let_me_in and c.ticket or waiting(c)
save()
return answer
""",
)

# In: channel (or NO_CHANNEL to leave it as it is), then for each key: id, ttl, weight, kind.
# Out for each: 0 if it is gone, 1 if it holds, if it waits -milliseconds until something may change by itself.
RENEW: Final = _script(
    TIME,
    CLOCK,
    STEP,
    NEEDS_NO_MEMORY,
    """
local function renew(key, id, ttl, weight, kind)
  -- It was released, and is kept for so long: it ends then, also if it had more.
  local exactly, ttl = ttl < 0, math.abs(ttl)
  local mine = '+' .. id
  -- What somebody else put in the place of one line must not concern the others.
  local found = redis.pcall('HMGET', key, 'state', mine, '~' .. id, 'notes')
  if found.err then return string.find(found.err, 'WRONGTYPE', 1, true) and 0 or found end
  local record = found[2] or found[3]
  if not record then return 0 end
  local c = parse(record)
  -- The only one here: all there is to say about the line stands in its record.
  local alone = found[1] == mine and not found[4] and c.expires > now and ttl + REMEMBERED <= LINGERS
  if not alone then open(key, found[1]) end
  if c.expires <= now then
    if not found[2] then leave_seat(id, c.seat) end
    drop_expired()
    admit()
    save()
    return 0
  end
  if exactly or now + ttl > c.expires then c.since, c.ttl, c.expires = clock, string.format('%.0f', ttl), now + ttl end
  if ARGV[1] ~= '-' then c.channel = ARGV[1] end
  if weight < c.weight then
    -- Only ever downwards: what is given back here may let others in.
    if found[2] and not alone then s.used = s.used - c.weight + weight end
    c.weight = weight
    c.info = string.gsub(c.info, '^(%S+) %S+', '%1 ' .. kind)
  end
  redis.call('HSET', key, (found[2] and '+' or '~') .. id, written(c))
  if alone then
    redis.call('PEXPIREAT', key, math.ceil(c.expires + REMEMBERED))
    return 1
  end
  cover(c.expires)
  if found[2] and s.n == 1 then s.first = c.expires end
  -- Claims that wait have planned to look later.
  if exactly then s.let_in = true end
  drop_expired()
  admit(id)
  local answer = 1
  if not found[2] and not s.let_me_in then answer = -waiting(c)[2] end
  save()
  return answer
end

local fates = {}
for i = 1, #KEYS do
  local at = i * 4 - 2
  fates[i] = renew(KEYS[i], ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3])
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
    TIME,
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
ALIVE: Final = _script(TIME, STEP, NEEDS_NO_MEMORY, _UP_TO_DATE, "return used and s.n or 0")

# In: an id of this eviction, so that a repeat does not hit whoever came after its victims; the token of the one that is
# meant, or nothing if all are.
# Out: how many held, and were told that they do no more.
EVICT: Final = _script(
    TIME,
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
      s.made_way = string.sub(all[i], 2)
      if c.channel ~= '-' then tell(c.channel, string.sub(all[i], 2)) end
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
