"""Strangers at the page: a refusal or nothing each."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

import lockline

from ..servers.process import wait_for
from .conftest import HANGS, Browse, Serve, WebProcess, WebServer

EVIL = "<img src=x onerror=\"document.title='taken'\">"


def wish(token: object, **other: object) -> dict[str, object]:
    return {"store": 0, "name": "prize", "token": str(token), "reason": "test", "who": "Ada", **other}


def csrf_of(visitor: httpx.Client) -> str:
    csrf: str = visitor.get("/api/about").json()["csrf"]
    return csrf


def raw(server: WebServer, request: bytes) -> bytes:
    """The answer to bytes that no client library would send."""
    with socket.create_connection(("127.0.0.1", server.port), HANGS) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def a_stranger(server: WebServer) -> httpx.Client:
    """Somebody who has not shown the token."""
    return httpx.Client(base_url=server.address, timeout=HANGS, verify=False)


class Prize:
    """A lock that must stay where it is, and a server that could take it away."""

    def __init__(self, server: WebProcess, client: lockline.Client, hold: Any) -> None:
        self.lease = hold(client.lock("prize"))
        self.client = client
        self.server = server
        self.visitor = server.visitor()
        self.csrf = csrf_of(self.visitor)
        self._audited = len(server.audited())

    def ask(self, **headers: str) -> httpx.Response:
        return self.visitor.post("/api/evict", json=wish(self.lease.token), headers=headers)

    def audited(self) -> list[dict[str, Any]]:
        """What was written down in this test."""
        return self.server.audited(self._audited)

    @property
    def kept(self) -> bool:
        there = [held.token for held in self.client.inspect("prize").holders] == [self.lease.token]
        return there and not self.audited()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """One server for all who try to get at the prize."""
    folder = tmp_path_factory.mktemp("guarded")
    server = WebProcess((f"local://{folder}/locks.db",), ("--allow-evict",), folder)
    yield server
    server.stop()


@pytest.fixture
def prize(guarded: WebProcess, hold: Any) -> Iterator[Prize]:
    with lockline.connect(guarded.urls[0]) as client:
        yield Prize(guarded, client, hold)


def test_an_eviction_as_the_page_asks_for_it_is_carried_out(prize: Prize) -> None:
    """Or the refusals below would say nothing."""
    assert prize.ask(**{"X-Lockline-CSRF": prize.csrf}).json() == {"evicted": 1}
    assert prize.lease.lost.wait(HANGS)
    assert stat.S_IMODE(prize.server.audit.stat().st_mode) == 0o600
    assert [line["outcome"] for line in prize.audited()] == ["asked", "evicted"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Lockline-CSRF": ""},
        {"X-Lockline-CSRF": "guessed"},
        {"X-Lockline-CSRF": "yes", "Origin": "http://evil.example"},
        {"X-Lockline-CSRF": "yes", "Origin": "null"},
        {"X-Lockline-CSRF": "yes", "Origin": "http://localhost:1"},
        {"X-Lockline-CSRF": "yes", "Origin": "file://"},
        {"X-Lockline-CSRF": "yes", "Sec-Fetch-Site": "cross-site"},
        {"X-Lockline-CSRF": "yes", "Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_change_from_another_page_is_refused(prize: Prize, headers: dict[str, str]) -> None:
    if headers.get("X-Lockline-CSRF") == "yes":
        headers = {**headers, "X-Lockline-CSRF": prize.csrf}
    assert prize.ask(**headers).status_code == 403
    assert prize.kept


def test_a_form_on_another_page_does_nothing(prize: Prize, chromium: Any) -> None:
    context = chromium.new_context(reduced_motion="reduce")
    context.set_default_timeout(1000 * HANGS)
    page = context.new_page()
    page.goto(prize.server.entrance)
    page.locator("#lines").wait_for()
    answers: list[int] = []
    page.on("response", lambda response: answers.append(response.status))
    for host in ("127.0.0.1", "localhost"):
        page.goto("about:blank")
        page.set_content(
            f'<form method=post enctype="text/plain" action="http://{host}:{prize.server.port}/api/evict">'
            f"<input name='{json.dumps(wish(prize.lease.token))[:-1]}, \"x\": \"' value='\"}}'></form>"
        )
        with page.expect_navigation():
            page.evaluate("document.forms[0].submit()")
    context.close()
    assert answers
    assert set(answers) <= {401, 403}
    assert prize.kept


def test_without_the_token_there_is_nothing_to_see(prize: Prize) -> None:
    with a_stranger(prize.server) as stranger:
        for path in ("/", "/page.js", "/api/about", "/api/stream", "/api/changes", "/api/line?name=prize", "/nowhere"):
            answer = stranger.get(path)
            assert answer.status_code == 401
            assert "prize" not in answer.text
        assert stranger.get("/", params={"token": "wrong"}).status_code == 401
        assert stranger.get("/", params={"token": "ü\ud800".encode("utf-8", "replace").decode()}).status_code == 401
        asked = stranger.post("/api/evict", json=wish(prize.lease.token), headers={"X-Lockline-CSRF": prize.csrf})
        assert asked.status_code == 401
    assert prize.kept


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(prize: Prize) -> None:
    with a_stranger(prize.server) as visitor:
        cookie = visitor.get("/", params={"token": prize.server.token}).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert prize.server.token
    assert prize.server.token not in cookie


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8077", "localhost.evil.example", "", "localhost@evil.example", "[::1"]
)
def test_a_name_that_was_turned_to_this_address_is_refused(prize: Prize, host: str) -> None:
    answer = raw(
        prize.server, f"GET /?token={prize.server.token} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    )
    assert answer.split(b" ")[1] in (b"421", b"400")
    assert b"set-cookie" not in answer.lower()


@pytest.mark.parametrize("stray", ['a[b]="c', "json={'x': 1}", "\u00fc=\u00fc", "=", "a b=c d", "x" * 4000])
def test_cookies_of_other_programs_on_this_host_lock_nobody_out(prize: Prize, stray: str) -> None:
    ours = "; ".join(f"{name}={value}" for name, value in prize.visitor.cookies.items())
    asked = (
        f"GET /api/about HTTP/1.1\r\nHost: localhost\r\nCookie: {stray}; {ours}; {stray}\r\nConnection: close\r\n\r\n"
    )
    assert raw(prize.server, asked.encode("latin-1")).split(b" ")[1] == b"200"


def test_a_question_with_a_thousand_parts_is_refused_and_not_a_failure(prize: Prize) -> None:
    many = "&".join(f"a{number}=1" for number in range(1000))
    with a_stranger(prize.server) as stranger:
        for visitor in (prize.visitor, stranger):
            assert visitor.get(f"/?{many}").status_code == 400


@pytest.mark.parametrize("path", ["/", "/page.css", "/api/about", "/api/stream", "/nowhere"])
def test_head_is_answered_like_get_without_a_body_and_without_a_stream(prize: Prize, path: str) -> None:
    head = prize.visitor.head(path)
    assert head.content == b""
    if path != "/api/stream":
        got = prize.visitor.get(path)
        assert (head.status_code, head.headers["content-length"]) == (got.status_code, str(len(got.content)))
    with a_stranger(prize.server) as stranger:
        assert stranger.head(path).status_code == 401


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "PROPFIND", "POSTED"])
def test_other_methods_are_refused_with_those_that_there_are(prize: Prize, method: str) -> None:
    for path in ("/", "/api/evict", "/api/line"):
        answer = prize.visitor.request(method, path, headers={"X-Lockline-CSRF": prize.csrf})
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        assert "access-control-allow-origin" not in answer.headers
    assert prize.kept


def test_names_that_were_allowed_and_addresses_are_served(serve: Serve, local_url: str) -> None:
    server = serve(local_url, options=("--allow-host", "locks.example"))
    for host in ("locks.example", "LOCKS.example:99", f"127.0.0.1:{server.port}", "localhost:9000", "[::1]:80"):
        assert server.visitor(Host=host).get("/api/about").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../board.py", "/page/../../audit.py", "/..%2f..%2faccess.py", "/%2e%2e/access.py", "//etc/passwd", "/etc/passwd",
        "/page.css/../../access.py", "/page.css%00.py", "/..\\..\\access.py", "/api/../../access.py", "/%c0%ae%c0%ae/access.py",
        "file:///etc/passwd", "/page.css;x", "/__init__.py", "/page/page.css",
    ],
)  # fmt: skip
def test_no_path_leads_to_another_file(prize: Prize, path: str) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in prize.visitor.cookies.items())
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
    answer = raw(prize.server, request.encode())
    assert answer.split(b" ")[1] in (b"404", b"400")
    assert b"import" not in answer
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "where", ["/?token=a%0d%0aSet-Cookie:%20x=1", "/%0d%0aSet-Cookie:%20x=1", "/api/line?name=%0d%0aX-Evil:1"]
)
def test_no_line_break_gets_into_a_header(prize: Prize, where: str) -> None:
    with a_stranger(prize.server) as stranger:
        for visitor in (prize.visitor, stranger):
            answer = visitor.get(where)
            assert "x-evil" not in answer.headers
            assert "x=1" not in answer.headers.get("set-cookie", "")


def test_a_header_with_a_line_break_and_a_second_length_are_refused(prize: Prize) -> None:
    for odd in (
        b"X: a\nb",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"X\x00: 1",
        b" folded: 1",
        b"A" * 70_000 + b": 1",
    ):
        answer = raw(
            prize.server, b"POST /api/evict HTTP/1.1\r\nHost: localhost\r\n" + odd + b"\r\nConnection: close\r\n\r\n"
        )
        assert answer.split(b" ")[1] in (b"400", b"401", b"421", b"431")
    assert prize.kept


def test_every_answer_carries_the_policy(prize: Prize) -> None:
    paths = ["/", "/page.js", "/page.css", "/icon.svg", "/api/about", "/nowhere"]
    with a_stranger(prize.server) as stranger:
        answers = [*(prize.visitor.get(path) for path in paths), stranger.get("/")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers
    page = prize.visitor.get("/").text
    assert " style=" not in page
    assert " on" not in page.replace(" only", "").replace(" on ", " ").replace(" one", "")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"1", b"[" * 5000, b"{" * 8000, b"\xff\xfe", b"x" * 20_000,
        json.dumps(wish(0)).encode(), json.dumps(wish("")).encode(), json.dumps(wish("-1")).encode(), json.dumps(wish("1e3")).encode(),
        json.dumps({**wish(1), "token": None}).encode(), json.dumps({**wish(1), "token": 1}).encode(),
        json.dumps(wish(1, reason="")).encode(), json.dumps(wish(1, reason=" ")).encode(), json.dumps(wish(1, reason="r" * 501)).encode(),
        json.dumps(wish(1, who="")).encode(), json.dumps(wish(1, store=7)).encode(), json.dumps(wish(1, store=-1)).encode(),
        json.dumps(wish(1, store=True)).encode(), json.dumps(wish(1, name="")).encode(), json.dumps(wish(1, name="n" * 600)).encode(),
        json.dumps(wish(1, name=["prize"])).encode(),
    ],
    ids=lambda body: repr(body[:60]),
)  # fmt: skip
def test_an_eviction_that_does_not_say_what_it_has_to_is_refused(prize: Prize, body: bytes) -> None:
    answer = prize.visitor.post("/api/evict", content=body, headers={"X-Lockline-CSRF": prize.csrf})
    assert answer.status_code in (400, 404, 413)
    assert answer.json()["problem"]
    assert prize.kept


def test_an_eviction_by_another_token_takes_nothing_away(prize: Prize) -> None:
    answer = prize.visitor.post("/api/evict", json=wish(prize.lease.token + 1), headers={"X-Lockline-CSRF": prize.csrf})
    assert answer.json() == {"evicted": 0}
    assert [held.token for held in prize.client.inspect("prize").holders] == [prize.lease.token]
    assert [line["outcome"] for line in prize.audited()] == ["asked", "held no more"]


def test_a_reason_cannot_forge_another_audit_line(prize: Prize) -> None:
    forged = 'because\n{"at": "1999", "outcome": "evicted", "who": "Eve"}'
    body = wish(prize.lease.token, reason=forged, who="Ada\nEve")
    assert prize.visitor.post("/api/evict", json=body, headers={"X-Lockline-CSRF": prize.csrf}).status_code == 200
    assert [(line["who"], line["reason"]) for line in prize.audited()] == [("Ada\nEve", forged)] * 2
    wait_for(lambda: prize.server.said.count("because") >= 2, 60, "the lines in the log")
    assert all("outcome" in line for line in prize.server.said.splitlines())


def test_nobody_is_evicted_without_an_audit_line(prize: Prize) -> None:
    prize.server.audit.unlink()
    prize.server.audit.mkdir()
    answer = prize.ask(**{"X-Lockline-CSRF": prize.csrf})
    assert answer.status_code == 500
    assert [held.token for held in prize.client.inspect("prize").holders] == [prize.lease.token]
    prize.server.audit.rmdir()
    prize.server.audit.touch()


def test_where_evicting_was_not_allowed_even_the_right_words_do_nothing(
    serve: Serve, local_url: str, hold: Any
) -> None:
    with lockline.connect(local_url) as client:
        lease = hold(client.lock("prize"))
        visitor = serve(local_url).visitor()
        assert "csrf" not in visitor.get("/api/about").json()
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            for path in ("/api/evict", "/", "/api/line"):
                assert visitor.request(method, path, json=wish(lease.token)).status_code in (403, 405)
        assert "only shows" in visitor.post("/api/evict", json=wish(lease.token)).json()["problem"]
        assert client.inspect("prize").holders[0].token == lease.token


def test_names_owners_and_metadata_of_strangers_stay_text(
    serve: Serve, browse: Browse, client: lockline.Client, store: str, waiter: Any, hold: Any
) -> None:
    evil_meta = {EVIL: EVIL, "href": "javascript:alert(1)", "nested": {"a": [EVIL]}}
    hold(client.lock(EVIL, meta=evil_meta))
    waiter(store, EVIL, EVIL)
    hold(client.lock("turn\u202earound\x1b[31m\x00\u2028", meta={"note": "</script><script>alert(1)</script>"}))
    visit = browse(serve(store, options=("--allow-evict",)))
    visit.line(EVIL).wait_for()
    expect(visit.page.locator(".waiter .who")).to_have_text(EVIL)
    visit.line("turn\\u202earound\\x1b[31m\\x00\\u2028").wait_for()
    visit.line(EVIL).get_by_role("button", name=EVIL).click()
    expect(visit.line(EVIL).locator("dl.says dd").first).to_have_text(EVIL)
    visit.page.get_by_role("button", name="Evict tester:1").click()
    expect(visit.page.locator("#evict-title")).to_have_text(f"Take {EVIL} away?")
    visit.keep("markup")
    visit.page.get_by_label("Reason").fill(EVIL)
    visit.page.get_by_label("Your name").fill(EVIL)
    visit.page.get_by_role("button", name="Evict this holder").click()
    expect(visit.line(EVIL).locator(".history li").nth(1)).to_contain_text(f"by {EVIL}: {EVIL}")
    assert visit.page.locator("main img, main script, main a[href^=javascript]").count() == 0
    assert "taken" not in visit.page.title()


def test_the_browser_itself_refuses_text_as_markup(serve: Serve, browse: Browse, local_url: str) -> None:
    visit = browse(serve(local_url))
    refused = visit.page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch (error) { return error instanceof TypeError } }"
    )
    assert refused
    assert [complaint for complaint in visit.complaints if "TrustedHTML" in complaint]
    visit.complaints.clear()


def test_huge_metadata_and_long_names_are_cut(serve: Serve, local_url: str, hold: Any) -> None:
    with lockline.connect(local_url, owner="o" * 200) as client:
        for number in range(30):
            meta = {f"{key}" * 8: "m" * 40 for key in range(60)} if number % 2 else {"one": "\x00" * 600}
            hold(client.lock(f"{number}-" + "ü" * 250, meta=meta))
        visitor = serve(local_url).visitor()
        lines: list[Any] = []

        def ask() -> bool:
            lines[:] = visitor.get("/api/changes").json()[0]["all"]
            return bool(lines)

        wait_for(ask, 60, "lines")
        assert len(lines) == 30
        for line in lines:
            (held,) = line["hold"]
            assert len(held["who"]) <= 120
            assert len(held["meta"]) <= 5
            assert all(len(value) <= 60 for _, value in held["meta"])
        detail = visitor.get("/api/line", params={"name": lines[1]["name"]})
        assert len(detail.content) < 20_000
