"""What a URL may say, and what is refused before anything is sent."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_digest_acl

import lockline
from lockline import ConfigError
from lockline.backends.zookeeper.target import ZooKeeperTarget, from_client, from_url


def settings(url: str, **options: object) -> ZooKeeperTarget:
    return from_url(url, options)


def test_servers_chroot_and_login_are_read_from_the_url() -> None:
    found = settings("zk://me:p%40ss@a:2181,b:2182,[::1]:2183/app/locks?session=4")
    assert found.chroot == "/app/locks"
    assert found.hosts == "a:2181,b:2182,[::1]:2183"
    assert found.options["auth_data"] == [("digest", "me:p@ss")]
    assert found.session == 4.0
    assert found.acl == CREATOR_ALL_ACL


def test_the_url_that_is_shown_has_no_secret() -> None:
    client = lockline.connect("zk://me:secret@a/app?tls=yes&key_password=hidden&cert=/c.pem&key=/k.pem")
    assert client.url == "zk://me@a:2181/app?tls=yes&cert=/c.pem&key=/k.pem"
    assert "secret" not in repr(client._engine.backend.__dict__.get("url"))
    client.close()


def test_without_a_login_everybody_may_touch_what_we_make_and_with_one_only_we() -> None:
    assert settings("zk://a").acl == OPEN_ACL_UNSAFE
    assert settings("zk://me:pw@a").acl == CREATOR_ALL_ACL
    assert settings("zk://me:pw@a?acl=open").acl == OPEN_ACL_UNSAFE
    acl = [make_digest_acl("ops", "pw", all=True)]
    assert settings("zk://me:pw@a", acl=acl).acl == acl


def test_tls_options_reach_kazoo() -> None:
    found = settings("zk://a?tls=yes&ca=/ca.pem&cert=/c.pem&key=/k.pem&check_hostname=yes")
    assert found.options["use_ssl"] is True
    assert found.options["ca"] == "/ca.pem"
    assert found.options["check_hostname"] is True
    assert found.options["verify_certs"] is True


@pytest.mark.parametrize(
    "url", ["zk://me:pw@a,b:2182/app?prefix=locks&session=4&acl=open", "zk://a?root=locks", "zk://a/app"]
)
def test_the_url_that_is_shown_leads_to_the_same_place(url: str) -> None:
    found = settings(url)
    again = settings(found.url, password="pw" if "@" in url else None)
    assert (again.hosts, again.chroot, again.prefix, again.session) == (
        found.hosts,
        found.chroot,
        found.prefix,
        found.session,
    )
    assert again.url == found.url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("zk:", "zk://host"),
        ("zk://", "zk://host"),
        ("zk:///app", "names no server"),
        ("zk://a?sesion=3", "unknown sesion"),
        ("zk://a?session=soon", "session is from 0.1 to 3600 seconds"),
        ("zk://a?session=-1", "session is from 0.1 to 3600 seconds"),
        ("zk://me@a", "user:password@"),
        ("zk://a?tls=maybe", "yes or no"),
        ("zk://a?tls=no&ca=/x.pem", "no meaning with tls=no"),
        ("zk://a?acl=creator", "acl is open"),
        ("zk://a?root=..", "root is the folder"),
        ("zk://a?prefix=..", "prefix is the folder"),
        ("zk://a?prefix=x&root=y", "root is called prefix today"),
        ("zk://a:port", "port"),
        ("zk://a/x//y", "zk://a/x//y"),
        ("zk://a/x#f", "no #fragment"),
    ],
)
def test_a_url_that_cannot_work_is_refused_before_anything_is_sent(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        lockline.connect(url)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no option"):
        lockline.connect("zk://a", sesion=3)


def test_your_own_client_keeps_its_own_session() -> None:
    client = KazooClient(hosts="a:2181,b:2181/app", timeout=7)
    with pytest.raises(ConfigError, match="leave session out"):
        lockline.connect(client, session=3)
    found = from_client(client, prefix="lockline", acl=None)
    assert (found.url, found.session) == ("zk://a:2181,b:2181/app", 7.0)
    assert from_client(client, prefix="locks", acl=None).url == "zk://a:2181,b:2181/app?prefix=locks"


def test_a_password_in_a_wrong_url_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        lockline.connect("zk://:secret@a")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("acl", ["creator", "all", 31, [], ["open"], [("world", "anyone")], [ACL(31, "anyone")]])
@pytest.mark.parametrize("target", ["zk://a", KazooClient(hosts="a")])
def test_an_acl_that_kazoo_could_not_write_is_refused_before_anything_is_sent(target: object, acl: object) -> None:
    with pytest.raises(ConfigError, match="acl is open"):
        lockline.connect(target, acl=acl)


def test_your_own_client_keeps_its_acl_unless_another_is_asked_for() -> None:
    ops = [make_digest_acl("ops", "pw", all=True)]
    client = KazooClient(hosts="a", default_acl=ops)
    assert from_client(client, prefix="lockline", acl=None).acl == ops
    assert from_client(client, prefix="lockline", acl="open").acl == OPEN_ACL_UNSAFE
