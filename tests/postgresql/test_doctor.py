"""What `lockline init` and `lockline doctor` say and do, as people call them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import psycopg
import pytest

import lockline
from lockline.backends.postgresql import doctor
from lockline.backends.postgresql.schema import RIGHTS
from lockline.cli.app import run
from tests.servers.process import wait_for

from .conftest import Database

pytestmark = pytest.mark.server
LOCKLINE = (sys.executable, "-m", "lockline.cli")


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LOCKLINE, *words], capture_output=True, text=True, timeout=60)


def call_here(*words: str) -> subprocess.CompletedProcess[str]:
    """The same without a process of its own, where only what is said counts."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def findings(url: str) -> dict[str, Any]:
    with lockline.connect(url) as client:
        return {found.text: found for found in client.examine()}


def test_init_makes_the_tables_and_says_so(shared: Database) -> None:
    url = f"{shared.url}?schema=by_hand"
    done = call_here("init", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith("can carry locks")
    assert call("run", "--url", url, "job", "--", "true").returncode == 0
    assert call_here("init", url).returncode == 0
    shared.ask("DROP SCHEMA by_hand CASCADE")


def test_what_init_prints_does_the_same(shared: Database) -> None:
    done = call_here("init", "--print", "postgresql://nowhere/db?schema=printed")
    assert done.returncode == 0
    with psycopg.connect(shared.url) as migration:
        migration.execute(done.stdout.encode())
    with lockline.connect(f"{shared.url}?schema=printed") as client, client.lock("x"):
        assert client.list() == ["x"]
    shared.ask("DROP SCHEMA printed CASCADE")


def test_init_of_a_store_that_needs_none_says_so() -> None:
    done = call_here("init", "memory:")
    assert done.returncode == 64
    assert "needs no tables" in done.stderr


def test_init_without_the_right_to_create_says_whose_work_it_is(shared: Database) -> None:
    shared.ask("CREATE ROLE poor LOGIN")
    done = call_here("init", shared.url.replace("lockline@", "poor@") + "?schema=fresh")
    shared.ask("DROP ROLE poor")
    assert done.returncode == 69
    assert "let the owner run it" in done.stderr


def test_the_doctor_warns_of_what_a_crash_would_forget(shared: Database) -> None:
    assert any("fsync is off" in text and found.level == "error" for text, found in findings(shared.url).items())
    lax = f"{shared.url}?options=-c%20synchronous_commit%3Doff"
    assert any("synchronous_commit is off" in text for text in findings(lax))


def test_the_doctor_does_not_say_that_a_grant_survives_a_crash_where_fsync_is_off(shared: Database) -> None:
    assert not any("survives a crash" in text for text in findings(shared.url))


def test_the_doctor_sees_an_old_snapshot_and_a_full_server_with_the_rights_of_one_that_only_locks(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "MANY", 1000)
    shared.ask("CREATE ROLE modest LOGIN")
    shared.ask(RIGHTS.format(schema="lockline", role="modest"))
    url = shared.url.replace("lockline@", "modest@")
    others: list[psycopg.Connection] = []
    try:
        assert not any("snapshot" in text for text in findings(url))
        with psycopg.connect(shared.url) as old:
            old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            old.execute("SELECT 1")
            shared.ask("DO $$ BEGIN FOR i IN 1..1100 LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$")
            assert any("snapshot from before the last" in text for text in findings(url))
        ((most,),) = shared.ask("SELECT setting::int FROM pg_settings WHERE name = 'max_connections'")
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"

        def is_seen() -> bool:
            while shared.ask(sessions)[0][0] < 0.91 * most:
                others.append(psycopg.connect(shared.url))
            return any("connections are in use" in text for text in findings(url))

        wait_for(is_seen, 60, "the warning")
    finally:
        for one in others:
            one.close()
        shared.ask("DROP OWNED BY modest")
        shared.ask("DROP ROLE modest")


def test_the_doctor_warns_of_a_short_statement_timeout(shared: Database) -> None:
    assert any(
        "statement_timeout is 500 ms" in text for text in findings(f"{shared.url}?options=-c%20statement_timeout%3D500")
    )


def test_the_doctor_speaks_for_programs_too(shared: Database) -> None:
    done = call_here("doctor", shared.url, "--json")
    told = json.loads(done.stdout)
    assert told["reachable"]
    assert told["guarantees"]["push"]
    assert told["guarantees"]["token_survives"] == ["release", "expiry", "restart", "failover"]
    bare = call_here("doctor", shared.url.replace("/postgres", "/template1"))
    assert bare.returncode == 69
    assert "lockline init" in bare.stdout
