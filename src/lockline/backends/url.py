"""The one grammar of the URLs of stores: `scheme://user:password@host:port,[::1]:port/path?option=value`.

What a word means is the same under every scheme: `tls`, `ca`, `cert`, `key`, `key_password`, `verify` and `check_hostname` say how
to trust a server, `prefix` where in the store the lines lie, `timeout` how many seconds one try at one server may take. A scheme
says which of them it has, adds its own, and calls its path what it likes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from ..core.arguments import seconds
from ..errors import ConfigError

if TYPE_CHECKING:
    import ssl

Parse = Callable[[Any, str], Any]
"""From what was written for an option, or given by the program, to its value; ConfigError for what makes no sense."""


class Written(str):
    """A text from a URL, where a number can only be written; a program that gives a text for a number has made a mistake."""


def a_text(value: object, what: str) -> str:
    """Some text in UTF-8, and no NUL in it."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{what} is a text, not {value!r}")
    return _utf8(value, what)


def yes_or_no(value: object, what: str) -> bool:
    """`yes` and `no`, and what other programs write for them."""
    word = value if isinstance(value, bool) else str(value).lower()
    if word in (True, "yes", "true", "1"):
        return True
    if word in (False, "no", "false", "0"):
        return False
    raise ConfigError(f"{what} is yes or no, not {value!r}")


def a_count(least: int) -> Parse:
    """A whole number of at least that."""

    def read(value: object, what: str) -> int:
        number = int(value) if isinstance(value, Written) and value.isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ConfigError(f"{what} is a whole number of at least {least}, not {value!r}")
        return number

    return read


def a_number(least: float, most: float, unit: str = "seconds") -> Parse:
    """A number within these bounds."""

    def read(value: object, what: str) -> float:
        try:
            number = seconds(float(value) if isinstance(value, Written) else value, what)
        except ValueError:  # a ConfigError is one, too
            number = least - 1
        if not least <= number <= most:
            raise ConfigError(f"{what} is from {least:g} to {most:g} {unit}, not {value!r}")
        return number

    return read


TLS: Final[Mapping[str, Parse]] = {
    "tls": yes_or_no, "ca": a_text, "cert": a_text, "key": a_text, "key_password": a_text, "verify": yes_or_no, "check_hostname": yes_or_no,
}  # fmt: skip
"""How to trust a server, and to be trusted: for every scheme whose servers speak TLS."""
PORTS: Final = {
    6379: "redis",
    26379: "redis+sentinel",
    2181: "zk",
    2379: "etcd",
    5432: "postgresql",
    8500: "consul",
    3306: "mysql",
}
"""Whose port it usually is."""
_SECRET: Final = re.compile(r"((?:password|secret|token|key)[^=&#]*=)([^&#]*)", re.IGNORECASE)
_HIDDEN: Final = re.compile(r"password|secret|token", re.IGNORECASE)
_HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one server listens, and who we are there."""

    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return spelled((self.host, self.port))


def spelled(address: tuple[str, int]) -> str:
    """The address for people and URLs."""
    host, port = address
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """How a server is trusted; what is None was not said."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    check_hostname: bool | None = None

    def context(self) -> ssl.SSLContext:
        """The same for Python's ssl; the files are read now."""
        import ssl  # whoever talks to no server does without

        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, self.key_password)
        except (OSError, ValueError) as problem:
            raise ConfigError(f"the certificates cannot be read: {problem}") from None
        context.check_hostname = self.verify and self.check_hostname is not False
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True)
class Location:
    """What a URL says, in values."""

    scheme: str
    hosts: tuple[Endpoint, ...]
    """One without name and port where the store is a file."""
    path: str = ""
    """Without the slashes around it, unless it is the path of a file."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Those that the scheme knows, by their names of today."""
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Those that it hands on to a library as they were written."""

    @property
    def user(self) -> str | None:
        """Who we are, where all hosts share one login."""
        return self.hosts[0].user

    @property
    def password(self) -> str | None:
        """The secret of that login."""
        return self.hosts[0].password

    def tls(self, *, always: bool = False) -> Tls | None:
        """How the servers are to be trusted, or None without TLS: whoever says how, says that."""
        said = {name: self.options[name] for name in TLS if name in self.options}
        wanted = said.pop("tls", always or bool(said))
        if always and not wanted:
            raise ConfigError(f"{self.scheme}:// is with TLS; leave tls=no out")
        if "key" in said and "cert" not in said:
            raise ConfigError("a key needs its certificate: ?cert=…&key=…")
        if said and not wanted:
            raise ConfigError(f"{', '.join(sorted(said))} have no meaning with tls=no")
        return Tls(**said) if wanted else None

    def at(self, path: str, **options: Any) -> Location:
        """The same with another path and these options: None for one that shall not be there."""
        merged = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        return replace(self, path=path, options=merged)

    @property
    def url(self) -> str:
        """The URL that leads to the same place, without its secrets."""
        entries: list[str] = []
        for at, host in enumerate(self.hosts):
            # One login for all stands before the first.
            shown = host.user and (at == 0 or any(other.user != host.user for other in self.hosts))
            entries.append(f"{quote(host.user or '', safe='')}@{host}" if shown else str(host))
        path = quote(self.path, errors="surrogateescape")
        said = "&".join(
            f"{name}={quote(_written(value), safe='/')}"
            for name, value in {**self.options, **self.others}.items()
            if isinstance(value, (str, int, float)) and not _HIDDEN.search(name)
        )
        between = "/" if path and self.hosts[0].port else ""
        return f"{self.scheme}://{','.join(entries)}{between}{path}" + (f"?{said}" if said else "")


def _written(value: str | float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else repr(value).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the URLs of a scheme may say."""

    example: str
    """For whoever wrote it otherwise."""
    port: int = 0
    """Where a host listens that is named without one; 0 for a store that has a file and no hosts."""
    options: Mapping[str, Parse] = field(default_factory=dict)
    host: str | None = "localhost"
    """The one that is meant where none is named; None if one has to be."""
    logins: bool = False
    """Whether each host has a login of its own, not all of them one."""
    old: Mapping[str, str] = field(default_factory=dict)
    """Other names of options, and what they are called today."""
    hands_on: tuple[str, ...] = ()
    """How the names of options begin that are a library's and not ours."""

    def read(self, url: str, given: Mapping[str, Any] | None = None) -> Location:
        """What the URL says, and what the program says besides, which counts for more; ConfigError with the cure.

        `user` and `password` may be given as well; what is given as None was not said.
        """
        scheme = scheme_of(url)
        rest = url[len(scheme) + 1 :].removeprefix("//")
        if "#" in rest:
            raise ConfigError(f"a {scheme}:// URL has no #fragment; write the # in a password or a path as %23")
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        given = {name: value for name, value in (given or {}).items() if value is not None}
        login: dict[str, str] = {name: _a_word(given.pop(name), name) for name in ("user", "password") if name in given}
        options, others = self.values(scheme, given, self._written(query))
        try:
            hosts = self._hosts(scheme, authority, login)
        except ConfigError:
            if "@" in path:
                raise ConfigError(
                    "there is an @ behind the first / of the URL; write the / in a password as %2F"
                ) from None
            raise
        # The path of a file may have any bytes in it.
        where = _decoded(path.strip("/"), "the path") if self.port else unquote(slash + path, errors="surrogateescape")
        return Location(scheme, hosts, where, options, others)

    @staticmethod
    def _written(query: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in filter(None, query.split("&")):
            name, _, value = part.partition("=")
            name = _decoded(name, "an option")
            if name in found:
                raise ConfigError(f"the URL says {name} twice")
            found[name] = Written(_decoded(value.replace("+", " "), name))
        return found

    def values(
        self, scheme: str, given: Mapping[str, Any], written: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options that the program gave and those that a URL had, by what they are called today; ours, and a library's."""
        options: dict[str, Any] = {}
        others: dict[str, Any] = {}
        # What the program gives comes last and so counts for more, under whichever of its names.
        for said in (written or {}, given):
            for name, value in said.items():
                new = self.old.get(name, name)
                if new in self.options:
                    if new != name and new in said:
                        raise ConfigError(f"{name} is called {new} today, and both are there")
                    options[new] = self.options[new](value, name)
                elif self.hands_on and name.startswith(self.hands_on):
                    others[name] = value
                else:
                    wrong = f"has no option {name!r}" if said is given else f"unknown {name}"
                    known = f"known are {', '.join(sorted(self.options))}" if self.options else "it has no options"
                    raise ConfigError(f"{scheme}: {wrong}; {known}")
        return options, others

    def _hosts(self, scheme: str, authority: str, login: Mapping[str, str]) -> tuple[Endpoint, ...]:
        before, _, names = authority.rpartition("@")
        if not self.port:
            if names:
                raise ConfigError(f"{scheme}: names no file; write {self.example}")
            return (_host("", 0, before, login),)
        if not names:
            if self.host is None:
                raise ConfigError(f"{scheme}:// names no server; write {self.example}")
            names = self.host
        entries = authority.split(",") if self.logins else [f"{before}@{name}" for name in names.split(",")]
        hosts = []
        for entry in entries:
            own, _, place = entry.rpartition("@")
            found = _HOST.fullmatch(_decoded(place.strip(), "a host"))
            port = int(found[3] or self.port) if found else 0
            if found is None or not 0 < port < 65536:
                raise ConfigError(f"{place!r} is not host:port; write {self.example}")
            name, percent, zone = (found[1] or found[2]).partition("%")
            try:
                name.encode("idna")
            except UnicodeError:
                # Sockets say so in their own way, and only when they are asked for it.
                raise ConfigError(f"{place!r} is no name of a host: a part of it is empty or too long") from None
            hosts.append(_host(name.lower() + percent + zone, port, own, login))
        return tuple(hosts)


def _host(name: str, port: int, written: str, given: Mapping[str, str]) -> Endpoint:
    user, _, password = written.partition(":")
    login = {"user": _decoded(user, "the user"), "password": _decoded(password, "the password"), **given}
    return Endpoint(name, port, login["user"] or None, login["password"] or None)


def _a_word(value: object, what: str) -> str:
    if not isinstance(value, str):
        # Never what it is: it may be the secret.
        raise ConfigError(f"the {what} is a text, not of type {type(value).__name__}")
    return _utf8(value, f"the {what}")


def _decoded(text: str, what: str) -> str:
    try:
        return _utf8(unquote(text, errors="strict"), what)
    except UnicodeDecodeError:
        raise ConfigError(f"{what} is a text in UTF-8") from None


def _utf8(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{what} is a text in UTF-8") from None
    return text


def scheme_of(url: str) -> str:
    """What stands before the first colon, if it can be a scheme; else nothing."""
    scheme, colon, _ = url.partition(":")
    return scheme.lower() if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme) else ""


def redacted(url: str) -> str:
    """The URL without its login and without whatever else sounds like a secret."""
    head, at, rest = url.rpartition("@")
    if at:
        scheme, slashes, _ = head.partition("//")
        if not slashes:
            scheme = "".join(scheme.partition(":")[:2]) if ":" in scheme else ""
        url = f"{scheme}{slashes}…@{rest}"
    return _SECRET.sub(r"\1…", url)


def scrubbed(message: str, url: str) -> str:
    """The message without the parts of the URL's login that it quotes, whole or in pieces as a parser cut them, and without
    whatever else of the URL sounds like a secret.
    """
    pieces = {text for _, value in _SECRET.findall(url) for text in (value, unquote(value))}
    head, at, _ = url.rpartition("@")
    if at:
        login = head.partition("//")[2] or head.partition(":")[2]
        password = login.partition(":")[2] or login
        pieces |= {login, unquote(login), password, unquote(password), *re.split(r"[/?#:@,\[\]]", password)}
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) >= 3:
            message = message.replace(piece, "…")
    return message


def guess(text: str) -> str | None:
    """The URL that somebody meant who wrote a host and a port."""
    found = re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})((?:,[\w.\[\]:-]+)*)(/.*)?", text)
    if found is None:
        return None
    scheme = PORTS.get(int(found[2]))
    return None if scheme is None else f"{scheme}://{text}"


def shortened(value: object) -> str:
    """The value as a message may show it: no page of it, and none of its secrets."""
    text = redacted(repr(value))
    return text if len(text) <= 80 else f"{text[:79]}…"
