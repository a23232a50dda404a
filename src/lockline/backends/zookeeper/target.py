"""From a URL or a KazooClient to what a client of Lockline needs to make its session, again after a fork."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id

from ...errors import ConfigError
from ...runtime import Runtime
from ..url import TLS, Endpoint, Grammar, Location, Tls, a_number, a_text, redacted
from .channel import KazooChannel
from .handler import LeanHandler

log = logging.getLogger("lockline.zookeeper.kazoo")
log.addHandler(logging.NullHandler())

DEFAULT_PREFIX: Final = "lockline"
RETRY: Final = {"max_tries": -1, "delay": 0.02, "backoff": 2, "max_jitter": 0.4, "max_delay": 0.5}


def a_prefix(value: Any, what: str = "prefix") -> str:
    """The folder for Lockline's nodes, below the chroot."""
    folder = value.strip("/") if isinstance(value, str) else ""
    if any(part in ("", ".", "..") for part in folder.split("/")):
        raise ConfigError(f"{what} is the folder for Lockline's nodes, such as lockline, not {value!r}")
    return folder


GRAMMAR: Final = Grammar(
    "zk://host:2181,host:2181/chroot",
    2181,
    {
        **TLS, "prefix": a_prefix, "session": a_number(0.1, 3600), "sasl": a_text, "sasl_service": a_text,
        # Whether it fits depends on the login.
        "acl": lambda value, what: value,
    },
    host=None,
    old={"root": "prefix"},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ZooKeeperTarget:
    """How to reach the ensemble, who we are there, and who may touch what we make."""

    url: str
    hosts: str
    chroot: str
    prefix: str
    acl: Sequence[ACL]
    session: float | None
    options: dict[str, Any]
    given: KazooClient | None = None

    def first_channel(self, runtime: Runtime, changed: Callable[[], None]) -> KazooChannel:
        """The user's own client if there is one, else a new one."""
        if self.given is None:
            return self.next_channel(runtime, changed)
        return KazooChannel(self.given, runtime, ours=False, changed=changed, fixed_session=None)

    def next_channel(self, runtime: Runtime, changed: Callable[[], None]) -> KazooChannel:
        """A client of our own with these settings; nothing is sent yet."""
        client = KazooClient(
            hosts=self.hosts + self.chroot,
            handler=LeanHandler(self.hosts.count(",") + 1),
            connection_retry=dict(RETRY),
            logger=log,
            **self.options,
        )
        return KazooChannel(client, runtime, ours=True, changed=changed, fixed_session=self.session)


def from_client(client: KazooClient, *, prefix: str, acl: Any) -> ZooKeeperTarget:
    """The user's own client, and its settings for a child of a fork, which must not use it."""
    hosts = tuple(Endpoint(host, port) for host, port in client.hosts)
    options = {
        name: getattr(client, name)
        for name in ("keyfile", "keyfile_password", "certfile", "ca", "use_ssl", "verify_certs", "check_hostname")
    }
    signed = bool(client.auth_data or client._connection.sasl_options)
    said = {} if prefix == DEFAULT_PREFIX else {"prefix": prefix}
    return ZooKeeperTarget(
        url=Location("zk", hosts, client.chroot.strip("/"), said).url,
        hosts=",".join(map(str, hosts)),
        chroot=client.chroot,
        prefix=prefix,
        acl=_acl(acl if acl is not None else client.default_acl or "open", signed),
        session=client._session_timeout / 1000,
        options={**options, "auth_data": list(client.auth_data), "sasl_options": client._connection.sasl_options},
        given=client,
    )


def from_url(url: str, given: Mapping[str, Any] | None = None) -> ZooKeeperTarget:
    """What a `zk://` URL says, and what the program says besides; ConfigError names what it should have said."""
    found = GRAMMAR.read(url, given)
    chroot = f"/{found.path}" if found.path else ""
    if any(part in ("", ".", "..") for part in chroot.split("/")[1:]):
        raise ConfigError(f"{redacted(url)!r}: {chroot} is no path of a node")
    options = _login(found) | _tls(found.tls())
    target = ZooKeeperTarget(
        url=found.url,
        hosts=",".join(map(str, found.hosts)),
        chroot=chroot,
        prefix=found.options.get("prefix", DEFAULT_PREFIX),
        acl=_acl(found.options.get("acl"), signed="auth_data" in options or "sasl_options" in options),
        session=found.options.get("session"),
        options=options,
    )
    try:
        KazooClient(hosts=target.hosts + chroot)
    except ValueError as problem:
        raise ConfigError(f"{redacted(url)!r}: {problem}") from None
    return target


def _login(found: Location) -> dict[str, Any]:
    if "sasl" in found.options:
        options = {
            "mechanism": found.options["sasl"].upper(),
            "service": found.options.get("sasl_service", "zookeeper"),
        }
        if found.user:
            options |= {"username": found.user, "password": found.password or ""}
        if importlib.util.find_spec("puresasl") is None:
            raise ConfigError("SASL needs one more package: pip install pure-sasl")
        return {"sasl_options": options}
    if found.user is None and found.password is None:
        return {}
    if not found.user or not found.password:
        raise ConfigError("digest authentication needs both: zk://user:password@host")
    return {"auth_data": [("digest", f"{found.user}:{found.password}")]}


def _tls(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "use_ssl": True, "ca": tls.ca, "certfile": tls.cert, "keyfile": tls.key, "keyfile_password": tls.key_password,
        "verify_certs": tls.verify, "check_hostname": bool(tls.check_hostname),
    }  # fmt: skip


def _acl(value: Any, signed: bool) -> Sequence[ACL]:
    if isinstance(value, (list, tuple)) and value and all(_is_acl(one) for one in value):
        return list(value)
    if value is None:
        return CREATOR_ALL_ACL if signed else OPEN_ACL_UNSAFE  # type: ignore[no-any-return]
    if value == "open":
        return OPEN_ACL_UNSAFE  # type: ignore[no-any-return]
    if value == "creator" and signed:
        return CREATOR_ALL_ACL  # type: ignore[no-any-return]
    raise ConfigError(f"acl is open, creator (with a login), or a list of kazoo's ACL, not {value!r}")


def _is_acl(one: Any) -> bool:
    # What kazoo cannot write would end its connection's thread.
    if not (isinstance(one, ACL) and isinstance(one.perms, int) and isinstance(one.id, Id)):
        return False
    return isinstance(one.id.scheme, str) and isinstance(one.id.id, str)
