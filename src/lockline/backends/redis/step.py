"""The Lua that every step beyond the shortest shares: read the line, drop who expired, let in who has room, write it back.

A line is one hash, so that a cluster can move it, a server can evict it, and a person can delete it only as a whole:

    state    absent while nobody stands in the line; "+id" while one holds alone, whose record says all that there is to say,
             and if the key may go on for as long as it has; else eleven numbers as packed doubles:
             n used least first until mixed head end watch sweep due
             n holders of `used` weight together, `least` is the smallest capacity among them (`mixed` if they differ);
             no holder expires before `first`; the key lives until `until`;
             seats from `head` up to `end` are the waiting line, some of them empty;
             by `watch` whoever waits will have looked by itself;
             nobody who waits expires before `due`; then the seats are swept, from `sweep` on if a round is under way;
             and behind the numbers the id of who sits at `head`, or nothing where a step did not care; where nobody sits,
             "+id" of the one that holds alone
    last     the last ticket
    +id      a claim that holds: "ticket since ttl granted weight capacity channel info", `since` in microseconds; it expires
             a ttl after that. `granted` in microseconds, too; a small number if it never waited, or if an older client let it in
    ~id      a claim that waits: the same, but for its seat instead of `granted`
    q<seat>  the id of who waits there; at both ends of a run of empty seats "!first last", which no id looks like
    -id      a claim that was withdrawn before it arrived, and until when that is remembered
    =id      an eviction that was done: until when that is remembered, and how many it hit
    notes    two numbers, absent while there is none of these two: they stand in order of their age
    o<n>     from the first number up to the second: the field of the note

Every line has its `last`; a hash without it is somebody else's, and is left alone.
"""

from __future__ import annotations

from typing import Final

TIME: Final = """
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = micros / 1000
"""

CLOCK: Final = """
-- The same as a text: to write a number of that length costs as much as a command.
local clock = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
"""

STATE: Final = "'" + 11 * "d" + "'"
NEVER: Final = "9e15"
"""Later than any time of a server."""

NEEDS_NO_MEMORY: Final = """
-- A server that is out of memory refuses a script's first write if that might need some. What follows gives memory back or
-- keeps what it has, so it begins with a write that needs none, and changes nothing.
redis.pcall('HDEL', KEYS[1], '')
"""

NUMBERS: Final = """
-- The numbers of a state, and where in it they end. One who is alone has them in its record; its key lives at least that long.
local function numbers(key, state)
  if string.byte(state) ~= 43 then return struct.unpack(STATE, state) end
  local since, ttl, weight, capacity =
    string.match(redis.call('HGET', key, state), '^%d+ (%d+) (%d+) %d+ (%d+) (%d+) ')
  local expires = since / 1000 + ttl
  return 1, tonumber(weight), tonumber(capacity), expires, expires + REMEMBERED, 0, 1, 1, 0, 0, NEVER, #state + 1
end
"""

STEP: Final = (
    NUMBERS
    + """
-- Lua shortens a number to 14 digits that it is asked to join to a text: enough for a seat, not for a ticket or a time.
local line, puts, s
-- How much of the past this step may still clear away, whatever the number of lines it works on.
local clearing = A_FEW

local function parse(record)
  local ticket, since, ttl, seat, weight, capacity, channel, info =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  return {
    ticket = tonumber(ticket), since = since, ttl = ttl, expires = since / 1000 + ttl, weight = tonumber(weight),
    capacity = tonumber(capacity), seat = seat, channel = channel, info = info,
  }
end

local function written(c)
  return string.format('%.0f %s %s %s %d %d %s ', c.ticket, c.since, c.ttl, c.seat, c.weight, c.capacity, c.channel)
    .. c.info
end

local function open(key, state)
  line, puts = key, {}
  if not state then
    s = {
      n = 0, used = 0, least = 0, first = 0, key_until = 0, mixed = 0, head = 1, seats_end = 1, watch = 0, sweep = 0,
      due = NEVER, next_id = '', opened_at = 1,
    }
    return
  end
  local n, used, least, first, key_until, mixed, head, seats_end, watch, sweep, due, at = numbers(key, state)
  s = {
    n = n, used = used, least = least, first = first, key_until = key_until, mixed = mixed, head = head,
    seats_end = seats_end, watch = watch, sweep = sweep, due = due,
    next_id = head < seats_end and string.sub(state, at) or '', opened_at = head,
    opened = state,
    alone = string.byte(state) == 43 and state or head == seats_end and at <= #state and string.sub(state, at),
  }
end

local function put(field, value)
  puts[#puts + 1] = field
  puts[#puts + 1] = value
  if #puts > 200 then
    redis.call('HSET', line, unpack(puts))
    puts = {}
  end
end

local function count_in(c, field)
  s.n, s.used, s.alone = s.n + 1, s.used + c.weight, false
  if s.n == 1 then
    s.alone = field
    s.least, s.first, s.mixed = c.capacity, c.expires, 0
    return
  end
  if c.capacity ~= s.least then s.mixed = 1 end
  s.least, s.first = math.min(s.least, c.capacity), math.min(s.first, c.expires)
end

-- Count the holders anew, without those whose time is over. Rare: `first` says when there can be one.
local function recount()
  s.n, s.used = 0, 0
  local all = redis.call('HGETALL', line)
  for i = 1, #all, 2 do
    local mark = string.sub(all[i], 1, 1)
    if mark == '+' then
      local c = parse(all[i + 1])
      if c.expires > now then
        count_in(c, all[i])
      else
        redis.call('HDEL', line, all[i])
        s.made_way = string.sub(all[i], 2)
      end
    end
  end
end

local function drop_expired()
  if s.n > 0 and now >= s.first then recount() end
end

-- A claim that held is gone; its field has been deleted.
local function count_out(c)
  s.n, s.used, s.alone = s.n - 1, s.used - c.weight, false
  -- The one that left may have been the one with the smallest capacity.
  if s.n > 0 and s.mixed == 1 then recount() end
end

-- The last seat of the run of empty ones that this seat is an end of; nothing if somebody sits there.
local function run_end(seat_value)
  return seat_value and tonumber((string.match(seat_value, '^!%d+ (%d+)$')))
end

-- Nobody sits here any more: what the seat's empty neighbours are, it becomes a part of. The ends of the line are never
-- empty, so it grows shorter where it can. Gives the last seat of the run.
local function vacate(seat)
  local around = redis.call('HMGET', line, 'q' .. seat - 1, 'q' .. seat + 1)
  local first, last, gone = seat, seat, { 'q' .. seat }
  if run_end(around[1]) then
    first = tonumber((string.match(around[1], '^!(%d+)')))
    gone[#gone + 1], gone[#gone + 2] = 'q' .. seat - 1, 'q' .. first
  end
  if run_end(around[2]) then
    last = run_end(around[2])
    gone[#gone + 1], gone[#gone + 2] = 'q' .. seat + 1, 'q' .. last
  end
  redis.call('HDEL', line, unpack(gone))
  if first <= s.head then
    s.head = last + 1
  elseif last + 1 >= s.seats_end then
    s.seats_end = first
  else
    local run = string.format('!%d %d', first, last)
    redis.call('HSET', line, 'q' .. first, run, 'q' .. last, run)
  end
  return last
end

-- A claim that waited is gone.
local function leave_seat(id, seat)
  redis.call('HDEL', line, '~' .. id)
  return vacate(tonumber(seat))
end

-- Look for those who waited and died: round after round, some seats a step, and only when somebody's time may be over.
-- Else they would all be left to the step that lets the next one in.
local function sweep()
  if s.sweep == 0 then
    if now < s.due or s.head == s.seats_end then return end
    s.sweep, s.due = s.head, NEVER
  end
  if #puts > 0 then
    redis.call('HSET', line, unpack(puts))
    puts = {}
  end
  local seat = math.max(s.sweep, s.head)
  while seat < s.seats_end do
    if clearing <= 0 then
      s.sweep = seat
      return
    end
    clearing = clearing - 1
    local id = redis.call('HGET', line, 'q' .. seat)
    if run_end(id) then
      seat = run_end(id)
    elseif id then
      local record = redis.call('HGET', line, '~' .. id)
      local expires = record and parse(record).expires
      if expires and expires > now then s.due = math.min(s.due, expires) else seat = leave_seat(id, seat) end
    end
    seat = seat + 1
  end
  s.sweep = 0
end

local function note_numbers(notes)
  local first, last = string.match(notes or '1 1', '^(%d+) (%d+)$')
  return tonumber(first), tonumber(last)
end

-- Clear away notes whose time is over, the oldest first.
local function forget_notes()
  local notes = redis.call('HGET', line, 'notes')
  if not notes then return end
  local first, last = note_numbers(notes)
  local before = first
  while first < last and clearing > 0 do
    local field = redis.call('HGET', line, 'o' .. first)
    local note = field and redis.call('HGET', line, field)
    if note and tonumber((string.match(note, '^%d+'))) > now then break end
    redis.call('HDEL', line, 'o' .. first, field or '')
    first, clearing = first + 1, clearing - 1
  end
  if first == last then
    redis.call('HDEL', line, 'notes')
  elseif first > before then
    redis.call('HSET', line, 'notes', string.format('%d %d', first, last))
  end
end

-- Remember something for a while.
local function make_note(field, note)
  local first, last = note_numbers(redis.call('HGET', line, 'notes'))
  redis.call('HSET', line, field, string.format('%.0f', now + REMEMBERED) .. note, 'o' .. last, field,
    'notes', string.format('%d %d', first, last + 1))
  forget_notes()
end

-- Whoever does this may lack the right to: then nobody hears of it before it looks by itself, but it is done, and done whole.
local function tell(channel, words)
  redis.pcall('PUBLISH', channel, words)
end

-- Whoever waits has planned to look when the holder of that time would expire. One that expires earlier came in:
-- the next in line shall know, or a dead one could hold everybody up until then.
local function warn_next()
  local seat = s.head
  for _ = 1, 8 do
    if seat >= s.seats_end then return end
    local id = redis.call('HGET', line, 'q' .. seat)
    local record = id and redis.call('HGET', line, '~' .. id)
    if record then
      local c = parse(record)
      if c.channel ~= '-' then tell(c.channel, id) end
      return
    end
    seat = (run_end(id) or seat) + 1
  end
end

-- Ids begin with what is the client's own.
local function client_of(id)
  return string.match(id, '^(.*)-') or id
end

-- Let in whoever has room now. `mine` is the caller's own claim: it needs no message; nor does `s.heir`, which knows.
-- Nobody listens on its channel: the client is dead, and so is its claim; go on with the next in the same step.
-- But not if it is next to `s.made_way`, the holder that is gone by this very step, and of the same client: that may have handed
-- its turn on, and the one that is at work by now ends by its own expiry, whether it is heard or not.
-- Asked before the message goes out, because a message also travels to replicas and through the cluster: whoever hears
-- "you hold" there would believe it, although here nobody was counted and the claim was dropped.
local function admit(mine)
  while s.head < s.seats_end and (s.n == 0 or s.used < s.least) do
    local seat = 'q' .. s.head
    local id = redis.call('HGET', line, seat)
    if run_end(id) then
      redis.call('HDEL', line, seat, 'q' .. run_end(id))
      s.head = run_end(id)
    elseif id then
      local record = redis.call('HGET', line, '~' .. id)
      local c = record and parse(record)
      local lives = c and c.expires > now
      if lives then
        local room = s.n == 0 and c.capacity or math.min(s.least, c.capacity)
        if s.used + c.weight > room then
          s.blocked_until = c.expires
          return
        end
      end
      local heard = lives and (id == mine or id == s.heir or c.channel == '-'
        or s.made_way and client_of(id) == client_of(s.made_way) or redis.call('PUBSUB', 'NUMSUB', c.channel)[2] > 0)
      -- A server that may not write refuses it here, and has told nobody anything.
      redis.call('HDEL', line, seat, '~' .. id)
      if heard then
        if id ~= mine and id ~= s.heir and c.channel ~= '-' then
          tell(c.channel, id .. string.format(' %.0f', c.ticket))
        end
        c.seat = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
        put('+' .. id, written(c))
        count_in(c, '+' .. id)
        s.let_in = true
        if id == mine then s.let_me_in = true end
      elseif lives then
        -- Perhaps it listens elsewhere, after a failover: then it shall know that it has to come again.
        tell(c.channel, id)
        s.made_way = nil
      end
    end
    s.head = s.head + 1
  end
end

local function save()
  sweep()
  forget_notes()
  if s.head == s.seats_end then
    if s.n == 0 then
      if #puts > 0 then redis.call('HSET', line, unpack(puts)) end
      redis.call('HDEL', line, 'state')
      redis.call('PEXPIRE', line, REMEMBERED)
      return
    end
    s.head, s.seats_end, s.watch, s.sweep, s.due = 1, 1, 0, 0, NEVER
    s.opened_at, s.next_id = 1, s.alone or ''
  elseif s.let_in and s.first + 250 < s.watch then
    warn_next()
  end
  local state = s.alone
  if not (s.alone and s.head == s.seats_end and s.key_until <= now + LINGERS) then
    state = struct.pack(STATE,
      s.n, s.used, s.least, s.first, s.key_until, s.mixed, s.head, s.seats_end, s.watch, s.sweep, s.due)
      .. (s.head == s.opened_at and s.next_id or '')
  end
  -- Whoever only looked has changed nothing, and nobody who watches is to be told that something has.
  if state ~= s.opened then put('state', state) end
  if #puts > 0 then redis.call('HSET', line, unpack(puts)) end
  if s.stretch then redis.call('PEXPIREAT', line, math.ceil(s.key_until)) end
end

-- The key outlives its longest claim, and the memory of its last ticket outlives that; by more, so that this is rare.
local function cover(expires)
  if expires + REMEMBERED > s.key_until then s.key_until, s.stretch = expires + SPARE, true end
end

-- Whose seat is next before this one, or who holds alone, as far as that is known without a search.
local function before(seat)
  local id = seat > s.head and redis.call('HGET', line, 'q' .. seat - 1)
  local first = id and string.match(id, '^!(%d+)')
  if first then
    -- Empty seats; the line may begin with them.
    seat = tonumber(first)
    id = seat > s.head and redis.call('HGET', line, 'q' .. seat - 1)
  end
  if seat > s.head then return id or '' end
  return s.alone and string.sub(s.alone, 2) or ''
end

-- What a waiting claim is told: how many are ahead, in how many milliseconds something may change by itself, its ticket, and
-- who is directly ahead, if that is known.
local function waiting(c)
  local change = s.first
  if s.blocked_until and s.blocked_until < change then change = s.blocked_until end
  s.watch = math.max(s.watch, change)
  local seat = tonumber(c.seat)
  return { s.n + seat - s.head, math.max(1, math.ceil(change - now)), c.ticket, before(seat) }
end
"""
)
