"""What has to be known of a system to stand between it and its clients, and to hold it against its own promises."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from ...backends.url import scheme_of
from .proxy import FaultProxy

DIRECT: Final = {
    "redis": 6379, "redlock": 6379, "zk": 2181, "etcd": 2379, "consul": 8500, "postgresql": 5432, "postgres": 5432, "mysql": 3306,
    "mariadb": 3306,
}  # fmt: skip
"""The systems whose clients talk to the addresses of the URL and to no others, and the ports that go without saying."""
ELSEWHERE: Final = {
    "local": "this store has no network",
    "unix": "a Unix socket has no network",
    "redis+sentinel": "clients ask the sentinels for the server's address, and go there directly",
    "redis+cluster": "clients ask the cluster for its addresses, and go there directly",
    "rediss": "the server's certificate names its host, so nobody can stand in between",
}
"""Why there is no proxy before the others."""
_TLS: Final = re.compile(
    r"(?:^|&)(?:tls=(?:yes|true|1)|ca=|cert=|ssl=(?:yes|true|1)|ssl_|sslmode=verify-full|sslrootcert=)"
)
_ANY_HOST: Final = re.compile(r"(?:^|&)(?:verify|check_hostname)=(?:no|false|0)")
_PLACE: Final = re.compile(r"(?:\[([^\]]+)\]|([^:]*))(?::([0-9]+))?")


@dataclass(frozen=True, slots=True)
class WayToStore:
    """How the workers reach the store: through proxies, or directly and why."""

    url: str
    proxies: tuple[FaultProxy, ...] = ()
    why_none: str = ""


def servers(url: str, ports: Mapping[str, int] = DIRECT) -> list[tuple[str, int]] | str:
    """The addresses that a proxy can stand before; or, in words, why there is none."""
    scheme = scheme_of(url)
    if scheme not in ports:
        return ELSEWHERE.get(scheme, f"nobody knows here whether {scheme}: clients talk to other addresses, too")
    rest, _, query = url.partition("://")[2].partition("?")
    if _TLS.search(query) and not _ANY_HOST.search(query):
        return ELSEWHERE["rediss"]
    if re.search(r"(?:^|&)(?:host|socket)=", query):
        return ELSEWHERE["unix"]
    found = []
    for _, place in _entries(scheme, rest.partition("/")[0]):
        read = _PLACE.fullmatch(place)
        if read is None:
            return "the addresses are not host:port"
        found.append((read[1] or read[2] or "localhost", int(read[3] or ports[scheme])))
    return found


def _entries(scheme: str, authority: str) -> list[tuple[str, str]]:
    """Each server of a URL: what stands before its address, and the address."""
    if scheme == "redlock":  # each with a login of its own
        pairs = [entry.rpartition("@") for entry in authority.split(",")]
        return [(before + at, place) for before, at, place in pairs]
    before, at, places = authority.rpartition("@")
    return [(before + at if not number else "", place) for number, place in enumerate(places.split(","))]


@contextmanager
def way_to(url: str, ports: Mapping[str, int] = DIRECT) -> Iterator[WayToStore]:
    """The same store through a proxy before each of its servers, where that is possible."""
    found = servers(url, ports)
    if isinstance(found, str):
        yield WayToStore(url, why_none=found)
        return
    with ExitStack() as stack:
        proxies = tuple(stack.enter_context(FaultProxy(*server)) for server in found)
        head, _, rest = url.partition("://")
        authority = re.split(r"[/?]", rest, maxsplit=1)[0]
        entries = _entries(scheme_of(url), authority)
        through = ",".join(f"{login}127.0.0.1:{proxy.port}" for (login, _), proxy in zip(entries, proxies, strict=True))
        yield WayToStore(f"{head}://{through}{rest[len(authority) :]}", proxies)


def life_after_death(url: str, ttl: float) -> float:
    """How long a claim may stand in the store after its client was killed, as the page of each backend says."""
    scheme = scheme_of(url)
    if scheme == "etcd":
        return max(2.0, math.ceil(ttl * 1.1)) + 0.5
    if scheme == "zk":  # a server's shortest session is two ticks of two seconds, and it ends at a tick
        return max(4.0, ttl) + 2.0
    if scheme == "consul":
        return ttl + 1.5
    return ttl


def gone_after(url: str, ttl: float) -> float:
    """How long it may be seen there: a claim that is no obstacle any more may still be listed until its session ends."""
    return 2 * max(10.0, 1.5 * ttl) if scheme_of(url) == "consul" else life_after_death(url, ttl)
