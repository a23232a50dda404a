"""The way in: URLs, tokens, TLS, agents that are not there, and what the doctor says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockline
from lockline.backends.consul.target import parse

from ..servers.consul import ConsulCluster
from ..servers.process import free_port, wait_for
from ..servers.proxy import Proxy
from .conftest import Clients, delete, put

OWN_NODE = 'node "lockline-claims" { policy = "write" } session "lockline-claims" { policy = "write" }'
"""The rights to the sessions' node: to register it, and to make sessions on it."""
MASTER = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("consul://me:secret@h", "token="),
        ("consul://http://h:8500", "?tls=yes"),
        ("consul://h/a/claims", "claims"),
        ("consul://h?session_ttl=0", "session_ttl"),
        ("consul://h?session_ttl=forever", "session_ttl"),
        ("consul://h?nonsense=1", "nonsense"),
        ("consul://h?token=ü", "ASCII"),
        ("consul://h..com", "too long"),
        (f"consul://{'h' * 64}.com", "too long"),
    ],
)
def test_a_wrong_url_is_told_from_before_any_connection(url: str, cure: str) -> None:
    with pytest.raises(lockline.ConfigError, match=cure.replace("?", r"\?")) as told:
        lockline.connect(url)
    assert "secret" not in str(told.value)


def test_the_token_is_in_no_text_about_the_client() -> None:
    target = parse("consul://h1,h2:8501/team?token=s3cret&session_ttl=20")
    assert target.token == "s3cret"
    assert "s3cret" not in target.url + repr(target)
    assert parse(target.url).session_ttl == 20.0
    assert parse(target.url).prefix == "team"


@pytest.mark.server
def test_an_agent_that_is_not_there_is_told_soon_where_nobody_insists() -> None:
    with (
        lockline.connect(f"consul://127.0.0.1:{free_port()}") as client,
        pytest.raises(lockline.BackendUnavailable, match="cannot be reached"),
    ):
        client.inspect("x")


@pytest.mark.server
def test_a_session_shorter_than_the_servers_allow_is_refused_with_the_cure(consul: ConsulCluster) -> None:
    with lockline.connect(f"{consul.url}/p?session_ttl=0.1") as client:

        def is_named() -> bool:
            with pytest.raises(lockline.BackendUnavailable) as told:
                client.lock("x", ttl=0.05).acquire(timeout=60)
            return "session_ttl" in str(told.value)

        # On a busy machine an answer may take longer than this ttl.
        wait_for(is_named, 60, "the reason")


@pytest.mark.server
def test_the_doctor_names_the_release_and_a_single_server(url: str, client_of: Clients) -> None:
    found = client_of(url).examine()
    assert any("Consul 1." in finding.text for finding in found)
    assert any("one server" in finding.text and finding.level == "warning" for finding in found)
    assert any("took" in finding.text for finding in found)
    assert any("lockline-claims" in finding.text and finding.level == "ok" for finding in found)


@pytest.mark.server
def test_the_doctor_finds_an_agent_that_has_the_name_of_the_sessions_node(tmp_path: Path, client_of: Clients) -> None:
    cluster = ConsulCluster(tmp_path / "named")
    cluster.servers[0].name = "lockline-claims"
    cluster.start()
    try:
        client = client_of(f"{cluster.url}/p?session_ttl=1")
        assert any("lockline-claims" in finding.text and finding.level == "error" for finding in client.examine())
        client.close()
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsulCluster]:
    """A server that lets nobody in without a token."""
    acl = {"acl": {"enabled": True, "default_policy": "deny", "tokens": {"master": MASTER}}}
    cluster = ConsulCluster(tmp_path_factory.mktemp("guarded"), config=acl).start()
    # The server makes the master token some time after it serves.
    wait_for(lambda: put(cluster, "kv/x", 1, **{"X-Consul-Token": MASTER})[0] == 200, 60, "the master token")
    yield cluster
    cluster.stop()


@pytest.mark.server
def test_rights_to_the_prefix_and_to_sessions_are_enough_and_without_them_the_error_names_them(
    guarded: ConsulCluster, client_of: Clients
) -> None:
    rules = f'key_prefix "locks/" {{ policy = "write" }} {OWN_NODE}'
    admin = {"X-Consul-Token": MASTER}
    code, policy = put(guarded, "acl/policy", {"Name": "lockline", "Rules": rules}, **admin)
    assert code == 200, policy
    code, made = put(guarded, "acl/token", {"Policies": [{"Name": "lockline"}]}, **admin)
    assert code == 200, made
    client = client_of(f"{guarded.url}/locks?session_ttl=1", token=made["SecretID"])
    with client.lock("x").acquire(timeout=60) as lease:
        assert client.inspect("x").holders[0].token == lease.token
    for target, options in (
        (f"{guarded.url}/locks", {}),
        (f"{guarded.url}/locks", {"token": "99999999-2222-3333-4444-555555555555"}),
        (f"{guarded.url}/elsewhere?session_ttl=1", {"token": made["SecretID"]}),
    ):
        with pytest.raises(lockline.BackendUnavailable, match="key_prefix write") as told:
            client_of(target, **options).lock("x").acquire(timeout=60)
        assert told.value.permanent
        assert made["SecretID"] not in str(told.value)
    # Consul itself would answer that there is nothing.
    stranger = client_of(f"{guarded.url}/locks")
    questions: list[Callable[[], object]] = [lambda: stranger.inspect("x"), stranger.list, lambda: stranger.evict("x")]
    with client.lock("x").acquire(timeout=60):
        for question in questions:
            with pytest.raises(lockline.BackendUnavailable, match="key_prefix write"):
                question()


@pytest.mark.server
def test_a_token_that_is_deleted_or_runs_out_costs_the_lease_at_its_deadline_and_another_client_goes_on(
    guarded: ConsulCluster, client_of: Clients
) -> None:
    admin = {"X-Consul-Token": MASTER}
    rules = f'key_prefix "" {{ policy = "write" }} {OWN_NODE}'
    assert put(guarded, "acl/policy", {"Name": "all", "Rules": rules}, **admin)[0] == 200
    made = put(guarded, "acl/token", {"Policies": [{"Name": "all"}]}, **admin)[1]
    lease = client_of(f"{guarded.url}/locks?session_ttl=1", token=made["SecretID"]).lock("x", ttl=5).acquire(timeout=60)
    assert delete(guarded, f"acl/token/{made['AccessorID']}", **admin) == 200
    with client_of(f"{guarded.url}/locks?session_ttl=1", token=MASTER).lock("x", ttl=60).acquire(timeout=60) as after:
        assert after.token > lease.token
        assert lease.lost.wait(60)


@pytest.mark.server
def test_tls_with_an_authority_of_its_own(tmp_path: Path, client_of: Clients) -> None:
    ca, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", ca, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    cluster = ConsulCluster(tmp_path / "cluster", config={"cert_file": str(ca), "key_file": str(key)}).start()
    try:
        with Proxy(("127.0.0.1", cluster.servers[0].port)) as proxy:
            client = client_of(f"consul://127.0.0.1:{proxy.port}/p?ca={ca}&session_ttl=1")
            for _ in range(20):
                with client.lock("x").acquire(timeout=60) as lease:
                    assert lease.valid
            assert proxy.accepted < 20, "what TLS says beside the answers does not end a connection"
            client.close()
        stranger = client_of(f"{cluster.url}/p?tls=yes")

        def is_named() -> bool:
            with pytest.raises(lockline.BackendUnavailable) as told:
                stranger.lock("x").acquire(timeout=1)
            return "certificate" in str(told.value)

        # On a busy machine a handshake may take longer than that.
        wait_for(is_named, 60, "the reason")
    finally:
        cluster.stop()
