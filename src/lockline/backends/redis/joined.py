"""Steps of one client on one line that meet in a packet travel as one request: one script call for all of them.

Turns are handed on inside a client (`core/succession.py`), so the line hears of them in bunches: this one left and named its heir,
that one left as well and named the next, and some more stand at the end of the line. One by one each of these is a script of
its own, and most of what a server spends on it is the same each time.

JOINED does what the single steps would have done one after the other, the leaves first, and only where that is simple: one
holds alone, those who leave are it and the next ones in order, nobody's time is over, nobody who comes was ever heard of. Else it has
changed nothing and says so, and the steps go out one by one, as they would have. It is never repeated: whoever got no
answer, or an error, asks again for itself, by the id of its own claim.

All of these were under way at the same time, so any order among them is one that could have been; each one's own steps are in
order anyway, because nobody asks for a second one before the first was answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ...runtime import clock
from ..resp.commands import ServerError
from ..resp.errors import code_of
from ..resp.joining import Joined, Request
from .commands import PreparedLine
from .scripts import _script
from .step import CLOCK, NUMBERS, TIME

MOST: Final = 100
"""Steps in one call: well under what Lua can hand to one command, and under a tenth of a millisecond of the server's time."""

# In: how many leave; whom the last of these has let in, or nothing; of those who come, as ENTER wants it: ttl, "weight capacity channel info",
# "1", and how long the key has to live for them. Then the fields that are asked for: 'state', 'last', 'notes'; if anybody leaves: '+' and the first,
# '~' and each of the others, '~' and the heir; then '~' and each who comes; then,
# if nobody leaves, '+' and each of these: else it is known who holds.
# Out: nothing if it has to be done one by one; else 1 if nobody came, or {the first ticket, how many are ahead of it, in how many
# milliseconds something may change by itself, who is directly ahead of it}. Each further one has the next ticket, and stands behind the one before.
JOINED: Final = _script(
    TIME,
    NUMBERS,
    """
local leaving, heir = tonumber(ARGV[1]), ARGV[2]
local found = redis.call('HMGET', KEYS[1], unpack(ARGV, 7))
local state, last = found[1], found[2]
if not (state and last) then return false end
local n, used, least, first, key_until, mixed, head, seats_end, watch, sweep, due, at = numbers(KEYS[1], state)
if n ~= 1 or used < least or now >= first then return false end

-- Where the fields of those who come begin, after those of who leaves.
local coming, next_id, gone, record = 10, string.byte(state) == 43 and state or string.sub(state, at), {}
if leaving > 0 then
  coming = 11 + leaving
  -- Who holds alone leaves; each of the others sits directly behind, in this order, needs all there is, and lives.
  record = found[4]
  if not record then return false end
  for i = 1, leaving do
    record = found[4 + i]
    if not record then return false end
    local since, ttl, seat, weight = string.match(record, '^%d+ (%d+) (%d+) (%d+) (%d+) %4 ')
    if not since or tonumber(seat) ~= head then return false end
    first = since / 1000 + ttl
    if first <= now or first + 250 < watch then return false end
    gone[i] = 'q' .. seat
    head = head + 1
    used = tonumber(weight)
  end
  least, mixed, next_id = used, 0, ''
end
local many = (#ARGV - coming + 1) / (leaving > 0 and 1 or 2)
for i = coming - 6, #found do
  if found[i] then return false end
end
if found[3] and many > 0 then
  local notes = {}
  for i = 1, many do notes[i] = '-' .. string.sub(ARGV[coming + i - 1], 2) end
  for _, note in ipairs(redis.call('HMGET', KEYS[1], unpack(notes))) do
    if note then return false end
  end
end

-- From here on it is done.
local empty = head == seats_end
if leaving > 0 and empty then
  head, seats_end, watch, sweep, due, next_id = 1, 1, 0, 0, NEVER, '+' .. heir
  if key_until <= now + LINGERS then key_until = first + REMEMBERED end
end
local puts, answer, stretch = {}, 1, false
if leaving > 0 then
  local before, rest = string.match(record, '^(%d+ %d+ %d+ )%d+(.*)$')
  puts = { '+' .. heir, before .. time[1] .. string.sub('000000', #time[2] + 1) .. time[2] .. rest }
end
if many > 0 then
""",
    CLOCK,
    """
  local ticket, number, expires = micros, clock, now + ARGV[3]
  if tonumber(last) >= micros then
    ticket = last + 1
    number = string.format('%.0f', ticket)
  end
  local before = string.sub(next_id, 2)
  if not empty then before = redis.call('HGET', KEYS[1], 'q' .. seats_end - 1) end
  answer = { ticket, 1 + seats_end - head, math.ceil(first - now), before }
  if now + ARGV[6] > key_until then key_until, stretch = expires + SPARE, true end
  if first > watch then watch = first end
  if expires < due then due = expires end
  if empty then next_id = string.sub(ARGV[coming], 2) end
  local times, about, at = ' ' .. clock .. ' ' .. ARGV[3] .. ' ', ' ' .. ARGV[4], #puts
  for i = coming, coming + many - 1 do
    if i > coming then
      ticket = ticket + 1
      number = string.format('%.0f', ticket)
    end
    local field, seat = ARGV[i], '' .. seats_end
    puts[at + 1], puts[at + 2], puts[at + 3], puts[at + 4] =
      'q' .. seat, string.sub(field, 2), field, number .. times .. seat .. about
    at, seats_end = at + 4, seats_end + 1
  end
  puts[at + 1], puts[at + 2] = 'last', number
end
local at = #puts
puts[at + 1] = 'state'
if head == seats_end and key_until <= now + LINGERS then
  puts[at + 2] = next_id
else
  puts[at + 2] = struct.pack(STATE, 1, used, least, first, key_until, mixed, head, seats_end, watch, sweep, due) .. next_id
end
-- First the write that a server may refuse: for want of memory, if somebody comes; then nobody has left either.
if many > 0 then redis.call('HSET', KEYS[1], unpack(puts)) end
if leaving > 0 then
  local at = leaving
  if empty and many > 0 then
    -- The seats are counted anew: what was written just now stays.
    at = 0
    for i = 1, leaving do
      if tonumber(string.sub(gone[i], 2)) > many then
        at = at + 1
        gone[at] = gone[i]
      end
    end
  end
  for i = 10, 10 + leaving do
    at = at + 1
    gone[at] = ARGV[i]
  end
  redis.call('HDEL', KEYS[1], unpack(gone, 1, at))
end
if many == 0 then redis.call('HSET', KEYS[1], unpack(puts)) end
if stretch then redis.call('PEXPIREAT', KEYS[1], math.ceil(key_until)) end
return answer
""",
)


A_CROWD: Final = 8
"""Releases that hand nothing on, after one that did, until there is no crowd of this client any more: only there do requests meet."""
LONGEST_APART: Final = 1.0
"""Seconds for which steps go out one by one, however slow the server was to say that it has to be."""
NOBODY: Final = 4 * b"$0\r\n\r\n"
"""What stands for the wishes of those who come where nobody does."""
LINE: Final = b"$5\r\nstate\r\n$4\r\nlast\r\n$5\r\nnotes\r\n"
BARE: Final = 4 + 6 + 3
"""Words of a request without a claim: the script and its key, what it is told, and what it asks of the line."""


class Step:
    """One claim's step on a line that many of its client's are in, in order with theirs: it comes and may wait, or it leaves.

    As a part of a bunch, if it comes, or if it has let in an heir.
    """

    __slots__ = ("claim_id", "heir", "line", "rest")

    def __init__(self, line: PreparedLine, claim_id: str, heir: str = "", rest: bytes = b"") -> None:
        self.line = line
        self.claim_id = claim_id
        self.heir = heir
        """Whom it has let in, if it leaves and has."""
        self.rest = rest
        """What ENTER wants to know beyond its id, ready for the wire, if it comes."""

    @property
    def patient(self) -> bool:
        """Others may wait for one that leaves and has let nobody in."""
        return bool(self.heir or self.rest)

    def __bytes__(self) -> bytes:
        if self.heir:
            return self.line.request_to_hand_on(self.claim_id, self.heir)
        if self.rest:
            return self.line.request_to_enter(self.claim_id, self.rest)
        return self.line.request_to_leave(self.claim_id)


class Bunch(Joined):
    """Steps of one line that are one request: leaves, each by the heir of the one before, and after them those who come."""

    __slots__ = ("_coming", "_heirs", "_leaver", "_line", "_places_of_coming", "_places_of_leaving", "_rest", "_sent")

    def __init__(self, line: PreparedLine) -> None:
        self._line = line
        self._coming: list[str] = []
        self._places_of_leaving: list[int] = []
        self._places_of_coming: list[int] = []
        self._sent = 0.0
        self._leaver = ""
        """Who leaves first."""
        self._heirs: list[str] = []
        """Whom each who leaves has let in; all but the last one leave as well."""
        self._rest = b""

    @property
    def places(self) -> list[int]:
        return self._places_of_leaving + self._places_of_coming

    def take(self, step: Step, place: int) -> bool:
        """Whether it could be added: who let in the first who leaves, or was let in by the last; or one who comes, like the others."""
        if step.heir:
            heirs = self._heirs
            if len(heirs) == MOST:
                return False
            if not heirs or step.heir == self._leaver:
                # The heir may have been quicker to say so than who let it in.
                self._leaver = step.claim_id
                heirs.insert(0, step.heir)
                self._places_of_leaving.insert(0, place)
                return True
            if heirs[-1] != step.claim_id:
                return False
            heirs.append(step.heir)
            self._places_of_leaving.append(place)
            return True
        coming = self._coming
        if not coming:
            self._rest = step.rest
        elif self._rest != step.rest or len(coming) == MOST:
            return False
        coming.append(step.claim_id)
        self._places_of_coming.append(place)
        return True

    def __bytes__(self) -> bytes:
        self._sent = clock.now()
        line, heirs, coming = self._line, self._heirs, self._coming
        words = [f"${len(each) + 1}\r\n~{each}\r\n" for each in heirs + coming]
        heir, rest = "", self._rest or NOBODY
        if heirs:
            leaver, heir = self._leaver, heirs[-1]
            words.insert(0, f"${len(leaver) + 1}\r\n+{leaver}\r\n")
        else:
            words += [f"${len(each) + 1}\r\n+{each}\r\n" for each in coming]
        many = str(len(heirs))
        about = f"${len(many)}\r\n{many}\r\n${len(heir)}\r\n{heir}\r\n"
        beginning = line.joined
        if not beginning:
            beginning = line.joined = _beginning(JOINED.by_digest, line.key)
        if line.unjoined:
            line.unjoined = False
            beginning = _beginning(JOINED.in_full, line.key)
        return b"".join(
            (b"*%d\r\n" % (BARE + len(words)), beginning, about.encode(), rest, LINE, "".join(words).encode())
        )

    def spread(self, reply: Any) -> Sequence[Any] | None:
        if type(reply) is list:
            ticket, ahead, change, before = reply
            answers: list[Any] = [1] * len(self._heirs)
            for claim_id in self._coming:
                answers.append([ahead, change, ticket, before])
                ahead, ticket, before = ahead + 1, ticket + 1, claim_id.encode()
            return answers
        if type(reply) is int:
            return [1] * len(self._heirs)
        line, now = self._line, clock.now()
        if type(reply) is ServerError and code_of(reply) == "NOSCRIPT":
            line.unjoined = True
        # What was joined and sent meanwhile counts on what was not done, and will not be done either; and what is sent anew comes after
        # it. So the next ones go out one by one, until all of that has arrived.
        line.apart_until = now + min(2 * (now - self._sent), LONGEST_APART)
        return None


def _beginning(form: Callable[[Sequence[bytes], Sequence[Any]], bytes], key: bytes) -> bytes:
    """What a request begins with, after the number of its words."""
    return form((key,), ()).partition(b"\r\n")[2]


def join(requests: Sequence[Request]) -> Sequence[int | Joined] | None:
    """What these become if those of one line that lie together are joined; None if they stay as they are."""
    parcels: list[int | Bunch] = []
    bunches: dict[PreparedLine, Bunch] = {}
    together = 0
    for place, step in enumerate(requests):
        if type(step) is not Step or not step.patient:
            # Perhaps it is about one of these claims: nobody passes it.
            bunches.clear()
            parcels.append(place)
            continue
        line = step.line
        bunch = bunches.get(line)
        if bunch is not None and bunch.take(step, place):
            together += 1
        elif line.apart_until and clock.now() < line.apart_until:
            parcels.append(place)
        else:
            bunches[line] = bunch = Bunch(line)
            bunch.take(step, place)
            parcels.append(bunch)
    if not together:
        return None
    return [each if isinstance(each, int) or len(each.places) > 1 else each.places[0] for each in parcels]
