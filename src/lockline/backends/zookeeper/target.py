"""From a URL or a KazooClient to what a client of Lockline needs to make its session, again after a fork."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from kazoo.client import KazooClient
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id

from ...errors import ConfigError
from ...runtime import Runtime
from .channel import Channel
from .connection import LeanHandler

log = logging.getLogger("lockline.zookeeper.kazoo")
log.addHandler(logging.NullHandler())

KNOWN = {
    "session", "root", "acl", "sasl", "sasl_service", "tls", "ca", "cert", "key", "key_password", "verify", "check_hostname",
}  # fmt: skip
RETRY = {"max_tries": -1, "delay": 0.02, "backoff": 2, "max_jitter": 0.4, "max_delay": 0.5}


@dataclass(frozen=True, slots=True)
class ZooKeeperTarget:
    """How to reach the ensemble, who we are there, and who may touch what we make."""

    url: str
    hosts: str
    chroot: str
    root: str
    acl: Sequence[ACL]
    session: float | None
    options: dict[str, Any]
    given: KazooClient | None = None

    def first_channel(self, runtime: Runtime, changed: Callable[[], None]) -> Channel:
        """The user's own client if there is one, else a new one."""
        if self.given is None:
            return self.next_channel(runtime, changed)
        return Channel(self.given, runtime, ours=False, changed=changed, fixed_session=None)

    def next_channel(self, runtime: Runtime, changed: Callable[[], None]) -> Channel:
        """A client of our own with these settings; nothing is sent yet."""
        client = KazooClient(
            hosts=self.hosts + self.chroot,
            handler=LeanHandler(self.hosts.count(",") + 1),
            connection_retry=dict(RETRY),
            logger=log,
            **self.options,
        )
        return Channel(client, runtime, ours=True, changed=changed, fixed_session=self.session)


def from_client(client: KazooClient, *, root: str, acl: Any) -> ZooKeeperTarget:
    """The user's own client, and its settings for a child of a fork, which must not use it."""
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in client.hosts)
    options = {
        name: getattr(client, name)
        for name in ("keyfile", "keyfile_password", "certfile", "ca", "use_ssl", "verify_certs", "check_hostname")
    }
    signed = bool(client.auth_data or client._connection.sasl_options)
    return ZooKeeperTarget(
        url=f"zk://{hosts}{client.chroot}",
        hosts=hosts,
        chroot=client.chroot,
        root=root,
        acl=_acl(acl if acl is not None else client.default_acl or "open", signed),
        session=client._session_timeout / 1000,
        options={**options, "auth_data": list(client.auth_data), "sasl_options": client._connection.sasl_options},
        given=client,
    )


def from_url(url: str, *, session: float | None, root: str | None, acl: Any) -> ZooKeeperTarget:
    """What a `zk://` URL says; ConfigError names what it should have said."""
    if "#" in url:
        raise ConfigError("a zk:// URL has no #fragment; write the # in a password as %23")
    rest = url.partition("://")[2]
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    login, _, hosts = authority.rpartition("@")
    # What goes into an error message.
    shown = url.replace(f"{login}@", f"{login.partition(':')[0]}@", 1) if login else url
    if not rest:
        raise ConfigError(f"{shown!r}: write zk://host:2181,host:2181/chroot")
    if not hosts:
        raise ConfigError(f"{shown!r} names no server; write zk://host:2181,host:2181/chroot")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    unknown = set(asked) - KNOWN
    if unknown:
        raise ConfigError(f"{shown!r}: unknown {', '.join(sorted(unknown))}; known are {', '.join(sorted(KNOWN))}")
    chroot = (slash + path).rstrip("/")
    if any(part in ("", ".", "..") for part in chroot.split("/")[1:]):
        raise ConfigError(f"{shown!r}: {chroot} is no path of a node")
    options = _login(shown, login, asked) | _tls(asked)
    signed = "auth_data" in options or "sasl_options" in options
    target = ZooKeeperTarget(
        url=_public(login, hosts, chroot, asked),
        hosts=hosts,
        chroot=chroot,
        root=a_root(root or asked.get("root", "lockline")),
        acl=_acl(acl if acl is not None else asked.get("acl"), signed),
        session=_session(session if session is not None else asked.get("session")),
        options=options,
    )
    try:
        KazooClient(hosts=hosts + chroot)
    except ValueError as problem:
        raise ConfigError(f"{shown!r}: {problem}") from None
    return target


def _login(shown: str, login: str, asked: dict[str, str]) -> dict[str, Any]:
    user, _, password = login.partition(":")
    user, password = unquote(user), unquote(password)
    if "sasl" in asked:
        options = {"mechanism": asked["sasl"].upper(), "service": asked.get("sasl_service", "zookeeper")}
        if user:
            options |= {"username": user, "password": password}
        if importlib.util.find_spec("puresasl") is None:
            raise ConfigError("SASL needs one more package: pip install pure-sasl")
        return {"sasl_options": options}
    if not login:
        return {}
    if not user or not password:
        raise ConfigError(f"{shown!r}: digest authentication needs user:password@")
    return {"auth_data": [("digest", f"{user}:{password}")]}


def _tls(asked: dict[str, str]) -> dict[str, Any]:
    given = {"ca", "cert", "key", "key_password", "verify", "check_hostname"} & set(asked)
    if not _yes(asked.get("tls", "no"), "tls"):
        if given:
            raise ConfigError(f"{', '.join(sorted(given))} need tls=yes in the URL")
        return {}
    return {
        "use_ssl": True,
        "ca": asked.get("ca"),
        "certfile": asked.get("cert"),
        "keyfile": asked.get("key"),
        "keyfile_password": asked.get("key_password"),
        "verify_certs": _yes(asked.get("verify", "yes"), "verify"),
        "check_hostname": _yes(asked.get("check_hostname", "no"), "check_hostname"),
    }


def _yes(text: str, what: str) -> bool:
    if text.lower() in ("yes", "true", "1"):
        return True
    if text.lower() in ("no", "false", "0"):
        return False
    raise ConfigError(f"{what} is yes or no, not {text!r}")


def _session(value: Any) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if isinstance(value, bool) or not 0.1 <= seconds <= 3600:
        raise ConfigError(f"session is a timeout of 0.1 to 3600 seconds, not {value!r}")
    return seconds


def a_root(value: str) -> str:
    root = value.strip("/")
    if not root or any(part in ("", ".", "..") for part in root.split("/")):
        raise ConfigError(f"root is the folder for Lockline's nodes, such as lockline, not {value!r}")
    return root


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


def _public(login: str, hosts: str, chroot: str, asked: dict[str, str]) -> str:
    shown = "&".join(f"{key}={quote(value, safe='/')}" for key, value in asked.items() if key != "key_password")
    user = login.partition(":")[0]
    return f"zk://{user + '@' if user else ''}{hosts}{chroot}{'?' + shown if shown else ''}"
