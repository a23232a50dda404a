"""The one grammar of URLs: what it reads, what it shows again, and what it refuses before anything is sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockline import ConfigError
from lockline.backends.url import TLS, Endpoint, Grammar, a_count, a_number, a_text, yes_or_no

SERVERS = Grammar(
    "store://h1:7,h2",
    7,
    {**TLS, "prefix": a_text, "timeout": a_number(0.1, 10), "copies": a_count(1), "loud": yes_or_no},
    old={"socket_timeout": "timeout", "ssl_ca_certs": "ca"},
    hands_on=("lib_",),
)
STRICT = Grammar("store://h1:7,h2", 7, host=None)
EACH = Grammar("store://u:p@h1,v:q@h2", 7, logins=True)
FILE = Grammar("file:///path")


def test_hosts_have_a_default_port_and_ipv6_has_brackets() -> None:
    found = SERVERS.read("store://a,B:2,[::1],[fe80::1%25eth0]:3/x/y/")
    assert [(host.host, host.port) for host in found.hosts] == [("a", 7), ("b", 2), ("::1", 7), ("fe80::1%eth0", 3)]
    assert found.path == "x/y"
    assert SERVERS.read("store://").hosts == (Endpoint("localhost", 7),)


def test_one_login_is_for_all_hosts_and_may_be_given_besides() -> None:
    found = SERVERS.read("store://me:p%40,s@a,b")
    assert {(host.user, host.password) for host in found.hosts} == {("me", "p@,s")}
    given = SERVERS.read("store://me:old@a,b", {"password": "new", "user": None})
    assert (given.user, given.password) == ("me", "new")
    assert SERVERS.read("store://:p@a").user is None


def test_each_host_has_a_login_of_its_own_where_the_scheme_says_so() -> None:
    found = EACH.read("store://u:p@a,:q@b,c:9")
    assert [(host.user, host.password) for host in found.hosts] == [("u", "p"), (None, "q"), (None, None)]
    assert found.url == "store://u@a:7,b:7,c:9"


def test_options_have_types_wherever_they_come_from() -> None:
    found = SERVERS.read(
        "store://a?prefix=x%2Fy&copies=2&loud=TRUE&timeout=0.5&lib_x=1", {"timeout": timedelta(seconds=3)}
    )
    assert found.options == {"prefix": "x/y", "copies": 2, "loud": True, "timeout": 3.0}
    assert found.others == {"lib_x": "1"}


def test_an_old_name_means_what_the_new_one_does() -> None:
    found = SERVERS.read("store://a?socket_timeout=2&ssl_ca_certs=/ca", {"timeout": 1})
    assert found.options == {"timeout": 1.0, "ca": "/ca"}
    assert found.url == "store://a:7?timeout=1&ca=/ca"
    with pytest.raises(ConfigError, match="socket_timeout is called timeout"):
        SERVERS.read("store://a?socket_timeout=2&timeout=3")


def test_whoever_says_how_to_trust_a_server_says_that_tls_is_meant() -> None:
    assert SERVERS.read("store://a").tls() is None
    for query in ("tls=yes", "ca=/ca", "cert=/c&key=/k", "verify=no"):
        assert SERVERS.read(f"store://a?{query}").tls() is not None
    assert SERVERS.read("store://a").tls(always=True) is not None
    trust = SERVERS.read("store://a?ca=/ca&cert=/c&key=/k&key_password=hidden&check_hostname=no").tls()
    assert trust is not None
    assert (trust.ca, trust.cert, trust.key, trust.key_password, trust.check_hostname) == (
        "/ca",
        "/c",
        "/k",
        "hidden",
        False,
    )
    assert "hidden" not in repr(trust)


@pytest.mark.parametrize("query", ["key=/k", "tls=no&ca=/x", "tls=maybe"])
def test_tls_that_contradicts_itself_is_refused(query: str) -> None:
    with pytest.raises(ConfigError):
        SERVERS.read(f"store://a?{query}").tls()


def test_certificates_that_are_not_there_are_found_when_they_are_read() -> None:
    trust = SERVERS.read("store://a?ca=/no/such/file").tls()
    assert trust is not None
    with pytest.raises(ConfigError, match="cannot be read"):
        trust.context()
    unchecked = SERVERS.read("store://a?verify=no").tls()
    assert unchecked is not None
    assert not unchecked.context().check_hostname


@pytest.mark.parametrize(
    "url",
    [
        "store://a:7/x%20y/%25?prefix=a%26b%2B+c&loud=no&timeout=0.25&copies=3&ca=/etc/ca.pem&lib_name=n",
        "store://m%40e:secret@a,[::1]:3/p?key_password=secret&lib_password=secret&cert=/c&key=/k",
        "store://",
    ],
)
def test_the_url_that_is_shown_leads_to_the_same_place_without_its_secrets(url: str) -> None:
    found = SERVERS.read(url)
    assert "secret" not in found.url
    assert "secret" not in repr(found)
    again = SERVERS.read(found.url, {"password": found.password})
    assert again.url == found.url
    assert (again.hosts, again.path) == (found.hosts, found.path)
    hidden = {name for name in {**found.options, **found.others} if "password" in name}
    assert again.options == {name: value for name, value in found.options.items() if name not in hidden}
    assert again.others == {name: value for name, value in found.others.items() if name not in hidden}


def test_a_file_has_a_path_of_any_bytes_and_no_hosts() -> None:
    for url in ("file:///a%20b%3F%23%ff/x", "file:/plain", "file://u:p@/socket"):
        found = FILE.read(url)
        assert found.path.startswith("/")
        assert FILE.read(found.url).path == found.path
    assert FILE.read("file:///a%ff").path == "/a\udcff"
    assert FILE.read("file:").path == ""
    with pytest.raises(ConfigError, match="names no file; write file:///path"):
        FILE.read("file://host/path")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("store://a:port", "host:port"),
        ("store://a:0", "host:port"),
        ("store://a:65536", "host:port"),
        ("store://a,,b", "host:port"),
        ("store://[::1", "host:port"),
        ("store://:9", "host:port"),
        ("store://a?colour=red", "unknown colour; known are"),
        ("store://a?prefix=x&prefix=y", "prefix twice"),
        ("store://a?prefix=", "prefix is a text"),
        ("store://a?timeout=soon", "timeout is from 0.1 to 10 seconds"),
        ("store://a?timeout=nan", "timeout is from 0.1 to 10 seconds"),
        ("store://a?timeout=0", "timeout is from 0.1 to 10 seconds"),
        ("store://a?copies=0", "copies is a whole number of at least 1"),
        ("store://a?copies=two", "copies is a whole number"),
        ("store://a?loud=2", "loud is yes or no"),
        ("store://a#x", "no #fragment"),
        ("store://a/%ff", "UTF-8"),
        ("store://a/\ud800", "UTF-8"),
        ("store://u:\ud800@a", "UTF-8"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_its_cure(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SERVERS.read(url)


def test_an_option_of_the_program_that_nobody_knows_is_named() -> None:
    with pytest.raises(ConfigError, match="store: has no option 'colour'"):
        SERVERS.read("store://a", {"prefix": "x", "colour": "red"})


def test_a_scheme_can_insist_that_a_server_is_named() -> None:
    for url in ("store:", "store://", "store:///x", "store://u:p@"):
        with pytest.raises(ConfigError, match="names no server; write store://h1:7,h2"):
            STRICT.read(url)


@pytest.mark.parametrize("login", [{"user": 5}, {"password": 51}, {"password": b"51"}])
def test_a_login_that_is_no_text_is_refused_and_not_shown(login: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is a text") as caught:
        SERVERS.read("store://a", login)
    assert "5" not in str(caught.value)
