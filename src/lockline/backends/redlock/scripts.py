"""What one node does, as Lua: each script is one step that nothing can come between.

Three keys belong to the node, whatever the number of locks:

    gate       the cluster id while the node serves; otherwise why it does not ("preparing ID", "refusing ID UNTIL", "retired ID")
    node       the record: cluster id, incarnation, run id, size, members, longest ttl, and whether all of it goes to the disk
    counters   a sorted set: each name's counter C, and the floor F under the empty name

and a few to a lock, all with a ttl: its lease ("ATTEMPT NUMBER INFO"), the tombstones of withdrawn attempts, and a list of who
waits, for people to look at.

Counters are dropped lowest first and only inside a script, which then lifts the floor to what it dropped. So a missing C is
never higher than F, whatever the clock does, and a server keeps a bounded number of them. If the set itself is gone
(eviction, a careless DEL), so is the floor: the node notices and refuses, instead of counting from nothing.
"""

from __future__ import annotations

from typing import Final

from ..resp.commands import Script

LARGEST: Final = 2**53 - 1
"""The largest whole number that Lua holds exactly. A node refuses to go beyond it."""
LEAP: Final = 2**39
"""How far above the server's own clock a hint may lie (six days, in microseconds), so that a client with a broken clock cannot
use the numbers up."""
BEYOND: Final = 2**40
"""How far above its own clock a server that may have forgotten something puts its floor: beyond all that hints can have made.

Nothing but a clock can tell it how far the numbers came: what it kept may be of any age. Numbers come from hints, at most LEAP above
a server's clock, from other servers' floors, at most BEYOND above their clocks when they were put there, and by ones, which no
server gives as fast as one in a microsecond. A floor is used only when one longest ttl has passed. So no number is ever more
than BEYOND above the clock, and the floor is above all of them, as long as servers' clocks differ by less than that ttl.
Adding to what is remembered instead would not do: a floor that another server lifted twice would be out of reach."""
JUMP: Final = 2**32
"""How far it lifts its floor where that is beyond the clock already: then the clock was set back, or an operator chose the floor."""
ABOVE: Final = LEAP + 2**38
"""How far above its clock a server puts its floor that has forgotten nothing, as far as can be told: above what hints can have made.
That costs nothing, and tokens then rise even where its settings did not tell the truth."""
VOUCHED: Final = 10_000
"""For how many milliseconds the word of a client that everything goes to the disk is good. Settings can be changed at any time, and
a log that was switched off keeps the last word from before. So a server is believed to have forgotten nothing only if it is back soon
after somebody looked; clients that use it look every second."""
REMEMBERED: Final = 1024
"""How many names' counters a node keeps."""
TRIMMED: Final = 4
"""How many of them one request drops at most, where there are too many."""

_PRELUDE: Final = f"""
local LARGEST, LEAP, ABOVE, BEYOND, JUMP = {LARGEST}, {LEAP}, {ABOVE}, {BEYOND}, {JUMP}
local REMEMBERED, TRIMMED, VOUCHED = {REMEMBERED}, {TRIMMED}, {VOUCHED}
"""

# Pieces are put where they are needed, not made functions: a closure costs a script more than most of its commands do.

_MILLISECONDS: Final = """
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_REFUSE_UNLESS_OPEN: Final = f"""
if gate ~= ARGV[1] then
  if not gate then return {{'shut', 'empty'}} end
  local state, whose, till = string.match(gate, '^(%S+) (%S+) ?(%d*)$')
  if state ~= 'refusing' or whose ~= ARGV[1] then return {{'shut', 'other', gate}} end
  {_MILLISECONDS.strip()}
  if now < tonumber(till) then return {{'shut', 'refusing', string.format('%.0f', tonumber(till) - now)}} end
  -- The time of refusing is over.
  redis.call('SET', KEYS[1], ARGV[1])
end
"""

_LASTING: Final = """
  -- What the settings promise, unless the log is being rewritten: before its first rewrite it has nothing of the past in it.
  local about = lasting == '1' and redis.call('INFO', 'persistence') or ''
  if string.find(about, 'aof_rewrite_in_progress:1') or string.find(about, 'aof_rewrite_scheduled:1')
    or string.find(about, 'aof_last_bgrewrite_status:err') or string.find(about, 'aof_last_write_status:err') then
    lasting = '0'
  end
"""

_COUNT: Final = """
  -- The floor is the lowest score of all, so the next ones are the oldest counters: the last that is dropped becomes the floor.
  if redis.call('ZADD', KEYS[2], number, name) == 1 then
    local over = redis.call('ZCARD', KEYS[2]) - REMEMBERED
    if over > 0 then
      local oldest = redis.call('ZRANGE', KEYS[2], 1, math.min(over, TRIMMED), 'WITHSCORES')
      for at = 1, #oldest, 2 do redis.call('ZREM', KEYS[2], oldest[at]) end
      redis.call('ZADD', KEYS[2], 'GT', oldest[#oldest], '')
    end
  end
"""

_LIFT: Final = f"""
  -- C = max(C, to), for a name whose counter or floor is below it.
  local score = redis.call('ZMSCORE', KEYS[2], name, '')
  if score[2] and to <= LARGEST and to > tonumber(score[1] or score[2]) then
    local number = string.format('%.0f', to)
    {_COUNT.strip()}
  end
"""

_ACQUIRE: Final = """
-- KEYS gate counters lease tombstone   ARGV cluster attempt ttl hint name info
local seen = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4])
local gate = seen[1]
@REFUSE@
if seen[3] then return {'buried'} end
local ttl = tonumber(ARGV[3])
if seen[2] then
  local holder, number = string.match(seen[2], '^(%S+) (%d+)')
  local left = redis.call('PTTL', KEYS[3])
  if holder ~= ARGV[2] then return {'no', seen[2], left} end
  -- The same request again changes nothing but the ttl.
  if left < ttl then redis.call('PEXPIRE', KEYS[3], ttl) end
  return {'yes', number}
end
local name = ARGV[5]
local score = redis.call('ZMSCORE', KEYS[2], name, '')
if not score[2] then return {'shut', 'forgot'} end
local clock = redis.call('TIME')
local hint = math.min(tonumber(ARGV[4]), clock[1] * 1000000 + clock[2] + LEAP)
local number = math.max(tonumber(score[1] or score[2]) + 1, hint)
if number > LARGEST then return {'shut', 'full'} end
number = string.format('%.0f', number)
@COUNT@
redis.call('SET', KEYS[3], ARGV[2] .. ' ' .. number .. ' ' .. ARGV[6], 'PX', ttl)
return {'yes', number}
"""

_PROMOTE: Final = """
-- KEYS gate counters lease   ARGV cluster attempt number name
local seen = redis.call('MGET', KEYS[1], KEYS[3])
local gate = seen[1]
@REFUSE@
local holder, number, info = string.match(seen[2] or '', '^(%S+) (%d+)(.*)$')
if holder ~= ARGV[2] or tonumber(number) > tonumber(ARGV[3]) then return {'no', seen[2] or ''} end
-- The ttl stays: only a request that was sent for it may lengthen a lease.
redis.call('SET', KEYS[3], holder .. ' ' .. ARGV[3] .. info, 'KEEPTTL')
local name, to = ARGV[4], tonumber(ARGV[3])
@LIFT@
return {'yes', ARGV[3]}
"""

_EXTEND: Final = """
-- KEYS gate lease   ARGV cluster attempt number ttl
local seen = redis.call('MGET', KEYS[1], KEYS[2])
local gate = seen[1]
@REFUSE@
local holder, number = string.match(seen[2] or '', '^(%S+) (%d+)')
if holder ~= ARGV[2] or number ~= ARGV[3] then return {'no', seen[2] or ''} end
-- Never creates. Never shortens what is held; a negative ttl is that of a lease that was released and is kept for so long.
local ttl = tonumber(ARGV[4])
if ttl < 0 or redis.call('PTTL', KEYS[2]) < ttl then redis.call('PEXPIRE', KEYS[2], math.abs(ttl)) end
return {'yes', number}
"""

_RELEASE: Final = """
-- KEYS gate counters lease tombstone   ARGV cluster attempt high burial name channel
local seen = redis.call('MGET', KEYS[1], KEYS[3])
local holder, number = string.match(seen[2] or '', '^(%S+) (%d+)')
local there = holder == ARGV[2]
local high = tonumber(ARGV[3])
if there then
  redis.call('DEL', KEYS[3])
  -- A user may lack the right to publish: then nobody hears of it, but it is done.
  redis.pcall('PUBLISH', ARGV[6], ARGV[2])
elseif seen[1] and tonumber(ARGV[4]) > 0 then
  -- The acquire may still be under way on another connection: when it comes, it finds this.
  redis.call('SET', KEYS[4], '', 'PX', ARGV[4])
end
if seen[1] == ARGV[1] then
  -- All nodes learn the highest number, so that the next attempt gets the same one from each.
  -- The counter is at least at the number of the lease, so most often there is nothing to lift.
  if not there or high > tonumber(number) then
    local name, to = ARGV[5], high
@LIFT@
  end
elseif not there then
  local gate = seen[1]
@REFUSE@
end
return {there and 'yes' or 'no', ''}
"""

_LOOK: Final = """
-- KEYS gate lease waiters   ARGV cluster
local seen = redis.call('MGET', KEYS[1], KEYS[2])
local gate = seen[1]
@REFUSE@
@NOW@
return {'yes', seen[2] or '', redis.call('PTTL', KEYS[2]), string.format('%.0f', now), redis.call('HGETALL', KEYS[3])}
"""

_SHOW: Final = """
-- KEYS gate waiters   ARGV cluster claim ttl info
-- For people who look: nothing is decided by who waits.
local gate = redis.call('GET', KEYS[1])
if gate ~= ARGV[1] then return {'no', ''} end
@NOW@
local ttl = tonumber(ARGV[3])
if redis.call('HLEN', KEYS[2]) > 64 then
  local all = redis.call('HGETALL', KEYS[2])
  for at = 1, #all, 2 do
    if tonumber(string.match(all[at + 1], '^%d+')) < now then redis.call('HDEL', KEYS[2], all[at]) end
  end
end
redis.call('HSET', KEYS[2], ARGV[2], string.format('%.0f', now + ttl) .. ' ' .. ARGV[4])
if redis.call('PTTL', KEYS[2]) < ttl then redis.call('PEXPIRE', KEYS[2], ttl) end
return {'yes', ''}
"""

_HIDE: Final = """
-- KEYS waiters   ARGV cluster claim
redis.call('HDEL', KEYS[1], ARGV[2])
return {'yes', ''}
"""

_EVICT: Final = """
-- KEYS gate lease tombstone   ARGV cluster attempt burial channel victim
local seen = redis.call('MGET', KEYS[1], KEYS[2])
local gate = seen[1]
@REFUSE@
redis.call('SET', KEYS[3], '', 'PX', ARGV[3])
if not seen[2] or string.match(seen[2], '^(%S+)') ~= ARGV[2] then return {'no', ''} end
redis.call('DEL', KEYS[2])
redis.pcall('PUBLISH', ARGV[4], ARGV[2])
redis.pcall('PUBLISH', ARGV[5], ARGV[2])
return {'yes', ''}
"""

_GREET: Final = """
-- KEYS gate counters node   ARGV durable
-- The first thing on every connection: a restart breaks connections, so whoever is greeted knows of it.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local record = redis.call('HMGET', KEYS[3], 'cluster', 'run', 'size', 'longest', 'durable', 'incarnation', 'members', 'vouched')
local gate = redis.call('GET', KEYS[1])
if not record[1] then return {'empty', run} end
local floor = redis.call('ZSCORE', KEYS[2], '')
if not floor or not gate then
  -- Part of the memory is gone, so none of it can be trusted.
  redis.call('DEL', KEYS[1])
  return {'forgot', run, record[1], record[3], record[4], record[6], record[7], '', ''}
end
@NOW@
if record[2] ~= run then
  redis.call('HSET', KEYS[3], 'run', run)
  redis.call('HINCRBY', KEYS[3], 'incarnation', 1)
  -- Memory that was on the disk before every answer is whole. Any other may lack its last moments: start far above
  -- what can have been lost, and refuse until no lease from before is alive and no vote is under way.
  -- A replica that was promoted never was on the disk of the server that it replaces.
  local copied = string.match(redis.call('INFO', 'replication'), 'master_replid2:0*([1-9a-f]?)') ~= ''
  local age = now - tonumber(record[8] or 0)
  local whole = not copied and record[5] == '1' and ARGV[1] == '1' and age >= 0 and age <= VOUCHED
  local highest = tonumber(redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2])
  local lifted = clock[1] * 1000000 + clock[2] + (whole and ABOVE or BEYOND)
  if highest >= lifted then lifted = whole and highest or highest + JUMP end
  redis.call('DEL', KEYS[2])
  redis.call('ZADD', KEYS[2], string.format('%.0f', math.min(lifted, LARGEST)), '')
  if not whole and (gate == record[1] or string.find(gate, '^refusing ')) then
    gate = 'refusing ' .. record[1] .. ' ' .. string.format('%.0f', now + record[4] * 1.02 + 10)
    redis.call('SET', KEYS[1], gate)
  end
end
local till = tonumber(string.match(gate, '^refusing %S+ (%d+)$'))
if till and now >= till then
  -- The time of refusing is over, also for those who only look.
  gate = record[1]
  redis.call('SET', KEYS[1], gate)
end
local lasting = ARGV[1]
@LASTING@
redis.call('HSET', KEYS[3], 'durable', lasting, 'vouched', string.format('%.0f', now))
local highest = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
return {'known', run, record[1], record[3], record[4], record[6], record[7], gate, highest}
"""

_VOUCH: Final = """
-- KEYS node   ARGV cluster durable
-- A client looked at the settings again, on the connection that this comes over.
local record = redis.call('HMGET', KEYS[1], 'cluster', 'durable', 'vouched')
if record[1] ~= ARGV[1] then return {'no', ''} end
local lasting = ARGV[2]
@LASTING@
@NOW@
-- Many clients look; a word a second is enough.
if record[2] ~= lasting or math.abs(now - tonumber(record[3] or 0)) >= 1000 then
  redis.call('HSET', KEYS[1], 'durable', lasting, 'vouched', string.format('%.0f', now))
end
return {'yes', lasting}
"""

_INSTALL: Final = """
-- KEYS gate counters node   ARGV cluster size members longest floor durable instead run opens
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if ARGV[8] ~= '' and ARGV[8] ~= run then return {'no', 'restarted'} end
local record = redis.call('HGET', KEYS[3], 'cluster')
local gate = redis.call('GET', KEYS[1])
local floor = redis.call('ZSCORE', KEYS[2], '')
if record == ARGV[1] and gate and floor then return {'same', gate} end
-- Another cluster's server is only taken over when that cluster has retired it.
if record and gate and record ~= ARGV[1] and gate ~= 'retired ' .. ARGV[7] then return {'no', gate} end
@NOW@
local number = math.max(tonumber(ARGV[5]), clock[1] * 1000000 + clock[2])
if floor then number = math.max(number, tonumber(redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2])) end
if number > LARGEST then return {'no', 'full'} end
redis.call('DEL', KEYS[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', number), '')
local lasting = ARGV[6]
@LASTING@
redis.call('HSET', KEYS[3], 'cluster', ARGV[1], 'size', ARGV[2], 'members', ARGV[3], 'longest', ARGV[4],
  'run', run, 'durable', lasting, 'vouched', string.format('%.0f', now))
redis.call('HINCRBY', KEYS[3], 'incarnation', 1)
-- A new cluster's gates stay shut until every server has its record: an open gate means that grants may have been made.
redis.call('SET', KEYS[1], ARGV[9] == '1' and ARGV[1] or 'preparing ' .. ARGV[1])
return {'yes', string.format('%.0f', number)}
"""

_OPEN: Final = """
-- KEYS gate   ARGV cluster
local gate = redis.call('GET', KEYS[1])
if gate == 'preparing ' .. ARGV[1] then redis.call('SET', KEYS[1], ARGV[1]) end
return {'yes', ''}
"""

_RETIRE: Final = """
-- KEYS gate counters   ARGV cluster
local gate = redis.call('GET', KEYS[1])
local retired = 'retired ' .. ARGV[1]
if gate ~= retired then
@REFUSE@
  redis.call('SET', KEYS[1], retired)
end
local top = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if not top[2] then return {'shut', 'forgot'} end
return {'yes', top[2]}
"""

_HIGHEST: Final = """
-- KEYS gate counters   ARGV cluster
local gate = redis.call('GET', KEYS[1])
@REFUSE@
local top = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if not top[2] then return {'shut', 'forgot'} end
return {'yes', top[2]}
"""


def script(body: str) -> Script:
    """The script with the pieces that several share put in."""
    pieces = {
        "@REFUSE@": _REFUSE_UNLESS_OPEN,
        "@LIFT@": _LIFT,
        "@COUNT@": _COUNT,
        "@NOW@": _MILLISECONDS,
        "@LASTING@": _LASTING,
    }
    text = _PRELUDE + body
    for mark, piece in pieces.items():
        text = text.replace(mark, piece.strip("\n"))
    return Script(text)


SCRIPTS: Final = {
    "acquire": script(_ACQUIRE),
    "promote": script(_PROMOTE),
    "extend": script(_EXTEND),
    "release": script(_RELEASE),
    "look": script(_LOOK),
    "evict": script(_EVICT),
    "show": script(_SHOW),
    "hide": script(_HIDE),
    "greet": script(_GREET),
    "vouch": script(_VOUCH),
    "install": script(_INSTALL),
    "open": script(_OPEN),
    "retire": script(_RETIRE),
    "highest": script(_HIGHEST),
}

GATE: Final = "lockline:redlock:gate"
NODE: Final = "lockline:redlock:node"
COUNTERS: Final = "lockline:redlock:counters"
LEASE: Final = "lockline:redlock:lease:"
TOMBSTONE: Final = "lockline:redlock:gone:"
WAITERS: Final = "lockline:redlock:waiters:"
FREED: Final = "lockline:redlock:freed:"
"""The channel of a name: says that its lease at one node has ended."""
VICTIM: Final = "lockline:redlock:victim:"
"""The channel of a client: says that one of its leases was evicted."""
