"""Keys in Redis behind a fence: check and access are one script."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ...core.arguments import Seconds, a_flag, a_ttl
from ...errors import ConfigError
from ...runtime.blocking import run
from ..rule import Mark, Offer, a_name, a_resource, offer_of, stale
from .clients import Sender, as_text, sender_for

DIGITS = 19
"""2^63-1 has as many. Lua's numbers are exact to 2^53 only, so tokens are compared as texts of equal length."""

# KEYS[1] the marks; ARGV: lock, token, grant, rule, ms to keep the marks (0: for ever). What follows is the access.
CHECK = """\
local held = redis.pcall('HGET', KEYS[1], ARGV[1])
if type(held) == 'table' then
  return redis.error_reply('FENCESHAPE the key of the marks is not a hash')
end
local offer = ARGV[2] .. ':' .. ARGV[3]
if held ~= offer then
  local rule = ARGV[4]
  if rule == 'confirm' then
    return redis.error_reply('STALETOKEN ' .. (held or ''))
  end
  if held and rule == 'order' then
    if not string.match(held, '^%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d:') then
      return redis.error_reply('FENCESHAPE the mark is not one of Lockline')
    end
    if string.sub(held, 1, 19) >= ARGV[2] then
      return redis.error_reply('STALETOKEN ' .. held)
    end
  end
  redis.call('HSET', KEYS[1], ARGV[1], offer)
end
if ARGV[5] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
"""
HEAD = 5
"""How many arguments the check takes."""

ENTER = CHECK + "return 1"
GET = CHECK + "return redis.call('GET', KEYS[2])"
SET = CHECK + "return redis.call('SET', KEYS[2], ARGV[6])"
SET_FOR = CHECK + "return redis.call('SET', KEYS[2], ARGV[6], 'PX', ARGV[7])"
HSET = CHECK + "return redis.call('HSET', KEYS[2], unpack(ARGV, 6))"
DELETE = CHECK + "return redis.call('DEL', KEYS[2])"
INCR = CHECK + "return redis.call('INCRBY', KEYS[2], ARGV[6])"

# The user's own script sees its keys and arguments as if it ran alone.
OWN = (
    CHECK
    + """\
local own_keys, own_args = {{}}, {{}}
for i = 2, #KEYS do own_keys[i - 1] = KEYS[i] end
for i = 6, #ARGV do own_args[i - 5] = ARGV[i] end
return (function(KEYS, ARGV)
{script}
end)(own_keys, own_args)"""
).replace("{{}}", "{}")


class RedisFence:
    """Keys of a Redis, Sentinel or Cluster client of redis-py, each access behind the check in the same script.

    With a client of `redis.asyncio` every method is awaited. The client's own errors come out as they are.
    """

    def __init__(
        self, client: Any, *, prefix: str = "lockline:fence:", exact: bool = False, keep: Seconds | None = None
    ) -> None:
        """`keep`: forget a mark that nobody has used for that long. Only where no process sleeps longer than that."""
        if not isinstance(prefix, str) or not prefix.isascii() or "{" in prefix or "}" in prefix:
            # Of other letters two clients with different encodings would make two marks.
            raise ConfigError(f"prefix is ASCII text without braces, not {prefix!r}")
        self._prefix = prefix
        self.exact = a_flag(exact, "exact")
        self._keep = "0" if keep is None else str(max(1, int(a_ttl(keep, "keep") * 1000)))
        self._sender: Sender = sender_for(client)

    def enter(self, key: str, holder: Any, *, lock: str | None = None) -> Any:
        """Raise the mark, before the first read: from here on no older holder writes this key."""
        return self._do(ENTER, key, holder, lock, (), writes=False)

    def check(self, key: str, holder: Any, *, lock: str | None = None) -> Any:
        """Enter again, before an access of another kind; under the exact rule, pass only if nobody entered since."""
        return self._do(ENTER, key, holder, lock, (), writes=True)

    def get(self, key: str, holder: Any, *, lock: str | None = None) -> Any:
        """Enter and read in one step."""
        return self._do(GET, key, holder, lock, (), writes=False)

    def set(self, key: str, holder: Any, value: Any, *, ttl: Seconds | None = None, lock: str | None = None) -> Any:
        """SET, if no newer holder has entered."""
        if ttl is None:
            return self._do(SET, key, holder, lock, (value,), writes=True)
        life = max(1, int(a_ttl(ttl) * 1000))
        return self._do(SET_FOR, key, holder, lock, (value, life), writes=True)

    def hset(self, key: str, holder: Any, mapping: Mapping[Any, Any], *, lock: str | None = None) -> Any:
        """HSET these fields, if no newer holder has entered; how many of them are new."""
        if not isinstance(mapping, Mapping) or not mapping:
            raise ConfigError("hset takes a mapping with at least one field")
        if len(mapping) > 3000:
            raise ConfigError("one hset takes at most 3000 fields: a script cannot hand on more at once")
        flat = [part for pair in mapping.items() for part in pair]
        return self._do(HSET, key, holder, lock, flat, writes=True)

    def delete(self, key: str, holder: Any, *, lock: str | None = None) -> Any:
        """DEL, if no newer holder has entered. The mark stays: it outlives what it protects."""
        return self._do(DELETE, key, holder, lock, (), writes=True)

    def incr(self, key: str, holder: Any, amount: int = 1, *, lock: str | None = None) -> Any:
        """INCRBY, if no newer holder has entered; the new value."""
        if isinstance(amount, bool) or not isinstance(amount, int):
            raise ConfigError(f"amount is a whole number, not {amount!r}")
        return self._do(INCR, key, holder, lock, (amount,), writes=True)

    def eval(
        self,
        key: str,
        holder: Any,
        script: str,
        *,
        keys: Sequence[str] = (),
        args: Sequence[Any] = (),
        lock: str | None = None,
    ) -> Any:
        """Any Lua, if no newer holder has entered: KEYS[1] is the key, then `keys`; ARGV is `args`."""
        if not isinstance(script, str) or not script.strip() or script.startswith("#!"):
            raise ConfigError("script is the text of a Lua script, without a first line of flags")
        return self._do(_own(script), key, holder, lock, args, writes=True, keys=keys)

    def look(self, key: str, lock: str | None = None) -> Any:
        """The mark of this lock at the key, or None."""
        key = a_resource(key)
        name = a_name(lock or key, "lock")
        return self._result(self._look(mark_key(self._prefix, key), name))

    def _do(
        self,
        script: str,
        key: str,
        holder: Any,
        lock: str | None,
        args: Sequence[Any],
        *,
        writes: bool,
        keys: Sequence[str] = (),
    ) -> Any:
        key = a_resource(key)
        offer = offer_of(key, holder, lock, self.exact)
        rule = "order" if not self.exact else "confirm" if writes else "take"
        command = (
            str(2 + len(keys)), mark_key(self._prefix, key), key, *keys,
            # As bytes: by the client's own encoding two clients would have two marks for one lock.
            offer.lock.encode(), str(offer.token).zfill(DIGITS), offer.grant.encode(), rule, self._keep, *map(as_text, args),
        )  # fmt: skip
        return self._result(self._run(script, key, offer, command))

    def _result(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The work itself to be awaited, or its result where the client blocks."""
        return work if self._sender.awaits else run(work)

    async def _run(self, script: str, key: str, offer: Offer, command: tuple[Any, ...]) -> Any:
        sender = self._sender
        try:
            try:
                return await sender.send("EVALSHA", _sha(script), *command)
            except sender.no_script:
                # A script that is not known has done nothing, so the text may follow.
                return await sender.send("EVAL", script, *command)
        except sender.refused as refusal:
            raise _meaning(refusal, key, offer) from None

    async def _look(self, marks: str, lock: str) -> Mark | None:
        found = await self._sender.send("HGET", marks, lock.encode())
        return None if found is None else _mark(found)


def _meaning(refusal: Exception, key: str, offer: Offer) -> Exception:
    """The error to raise for what the server said."""
    word, _, rest = str(refusal).partition(" ")
    if word == "STALETOKEN":
        return stale(key, _mark(rest) if rest else None, offer)
    if word == "FENCESHAPE":
        return ConfigError(f"the marks of {key!r} are of another shape: {rest}; nothing was changed")
    return refusal


def _mark(text: str | bytes) -> Mark:
    digits, _, grant = (text.decode() if isinstance(text, bytes) else text).partition(":")
    return Mark(int(digits), grant)


@lru_cache(maxsize=256)
def _sha(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


@lru_cache(maxsize=256)
def _own(script: str) -> str:
    return OWN.replace("{script}", script)


@lru_cache(maxsize=4096)
def mark_key(prefix: str, key: str) -> str:
    """The key of the marks, in the same cluster slot as the key itself, and no other key's."""
    begin = key.find("{")
    end = key.find("}", begin + 1) if begin >= 0 else -1
    if end > begin + 1:
        return f"{prefix}t:{key}"  # its own hash tag decides, for both
    if "}" not in key:
        return f"{prefix}k:{{{key}}}"
    # All of the key decides, and it cannot stand inside braces: find another text of the same slot.
    from redis.crc import key_slot

    slot = key_slot(key.encode())
    number = next(n for n in range(1 << 20) if key_slot(str(n).encode()) == slot)
    return f"{prefix}o:{{{number}}}:{key}"
