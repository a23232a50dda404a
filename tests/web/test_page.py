"""The page in a real browser: live, in order, for mouse, keyboard and phone."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import expect

import lockline
from lockline import web
from lockline.web.survey import EVERY, Seen, Survey

from ..servers.process import free_port
from .conftest import HANGS, Browse, Serve
from .mounted import under_uvicorn, under_wsgiref

on_one_store = pytest.mark.parametrize("store", ["local"], indirect=True)
"""What the browser makes of what it is told is the same whatever store it came from."""
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")


def test_a_grant_and_a_release_are_seen(
    serve: Serve, browse: Browse, client: lockline.Client, store: str, hold: Any
) -> None:
    assert EVERY <= 0.5, "what happens is on the screen within a second"
    visit = browse(serve(store))
    expect(visit.page.get_by_text("Nothing is held and nobody waits.")).to_be_visible()
    for _ in range(2):
        lease = hold(client.lock("orders/42", meta={"batch": "november"}))
        row = visit.line("orders/42")
        expect(row).to_contain_text("tester:1")
        expect(row).to_contain_text(f"token {lease.token}")
        expect(row).to_contain_text("batch november")
        lease.release()
        row.wait_for(state="detached")


def test_a_line_stands_in_order_and_moves_up(
    serve: Serve, browse: Browse, client: lockline.Client, store: str, waiter: Any, hold: Any
) -> None:
    visit = browse(serve(store))
    lease = hold(client.lock("gate"))
    for number in range(7):
        waiter(store, "gate", f"w{number}:1")
    row = visit.line("gate")
    expect(row.locator(".facts")).to_have_text("lock · 7 waiters")
    expect(row.locator(".holder .who")).to_have_text("tester:1")
    expect(row.locator(".waiter .who")).to_have_text([f"w{number}:1" for number in range(5)])
    expect(row.locator(".waiters .more")).to_have_text("+2 more wait")
    expect(visit.page.locator("#sum-waiting")).to_have_text("7")
    visit.keep("line")
    lease.release()
    expect(row.locator(".holder .who")).to_have_text("w0:1")
    expect(row.locator(".waiter .who").first).to_have_text("w1:1")


@on_one_store
def test_the_bar_empties_and_fills_up_with_each_renewal(
    serve: Serve, browse: Browse, client: lockline.Client, store: str, hold: Any
) -> None:
    visit = browse(serve(store), motion="no-preference")
    hold(client.lock("bar", ttl=9))
    visit.line("bar").wait_for()
    # It is empty when the ttl is over, and full in a moment when a renewal comes.
    visit.page.wait_for_function(
        """() => {
          const fill = document.querySelector(".ttl i");
          const part = fill.getBoundingClientRect().width / fill.parentElement.getBoundingClientRect().width;
          if (window.emptied && part > window.part + 0.02) return true;
          window.emptied ||= part < window.part;
          window.part = part;
          return false;
        }""",
        polling=100,
    )


@on_one_store
def test_a_holder_that_is_not_renewed_is_marked_and_its_loss_is_told_and_kept(
    serve: Serve, browse: Browse, client: lockline.Client, store: str, hold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked, real, late = threading.Event(), Survey.look, list[Seen]()

    async def look(survey: Survey) -> Seen:
        """As the store shows it just before its end, until the page has marked it and the store has dropped it."""
        seen = await real(survey)
        if "silent" in seen.lines and seen.lines["silent"].claims:
            (claim,) = seen.lines["silent"].claims
            line = replace(seen.lines["silent"], claims=(replace(claim, remaining=0.4),))
            late[:] = [replace(seen, lines={"silent": line})]
        elif marked.is_set():
            return seen
        return late[0] if late else seen

    monkeypatch.setattr(Survey, "look", look)
    visit = browse(serve(store))
    hold(client.lock("silent", ttl=2, renew=False))
    row = visit.line("silent")
    expect(row.locator(".flag")).to_have_text("not renewed")
    marked.set()
    expect(row.locator(".flag")).to_have_text("lost")
    expect(row.locator(".free")).to_have_text("free")
    expect(visit.page.locator("#live")).to_contain_text("silent: tester:1 lost it")
    visit.keep("lost")
    visit.page.get_by_text("1 lease lost or evicted lately").click()
    expect(visit.page.locator("#lately-list li")).to_contain_text(["silent"])
    expect(visit.page.locator("#lately-list li")).to_contain_text(["not renewed for its ttl of 2 s"])


def test_slow_holders_and_long_lines_come_first(
    serve: Serve, browse: Browse, local_url: str, waiter: Any, hold: Any
) -> None:
    with lockline.connect(local_url) as client:
        leases = [hold(client.lock(name)) for name in ("a", "b", "c")]
        waiter(local_url, "c", "w1:1")
        waiter(local_url, "b", "w2:1")
        waiter(local_url, "c", "w3:1")
        visit = browse(serve(local_url))
        expect(visit.page.locator(".open")).to_have_text(["c", "b", "a"])
        visit.page.get_by_role("combobox", name="Order").select_option("name")
        expect(visit.page.locator(".open")).to_have_text(["a", "b", "c"])
        assert all(lease.valid for lease in leases)


def test_search_finds_by_name_and_by_owner_and_enter_goes_to_what_it_found(
    serve: Serve, browse: Browse, local_url: str, hold: Any
) -> None:
    with lockline.connect(local_url, owner="web-3:811") as one, lockline.connect(local_url, owner="cron:5") as other:
        hold(one.lock("a  b"))
        visit = browse(serve(local_url))
        expect(visit.page.locator("#count")).to_have_text("1 line")
        assert visit.page.locator(".open").inner_text() == "a  b", "a name keeps its spaces"
        hold(one.lock("orders/41"))
        hold(one.lock("orders/42"))
        hold(other.lock("reports/7"))
        expect(visit.page.locator(".line:visible")).to_have_count(4)
        search = visit.page.get_by_role("searchbox")
        search.fill("ORDERS/42")
        expect(visit.page.locator(".line:visible .open")).to_have_text(["orders/42"])
        expect(visit.page.locator("#count")).to_have_text("1 of 4 lines")
        search.fill("cron")
        expect(visit.page.locator(".line:visible .open")).to_have_text(["reports/7"])
        search.fill("nowhere")
        expect(visit.page.get_by_text("No line matches")).to_be_visible()
        search.fill("")
        search.blur()
        visit.page.keyboard.press("/")
        visit.page.keyboard.type("rs/42")  # no number alone: the search finds owners too, and they have numbers
        visit.page.keyboard.press("Enter")
        expect(visit.line("orders/42").get_by_role("button", name="orders/42")).to_be_focused()
        expect(visit.line("orders/42").get_by_role("table")).to_have_count(0)
        visit.page.keyboard.press("Enter")
        expect(visit.line("orders/42").get_by_role("table")).to_be_visible()


def test_a_token_is_shown_to_its_last_digit(serve: Serve, browse: Browse, local_url: str, hold: Any) -> None:
    with lockline.connect(local_url, owner="web-3:811") as client:
        lease = hold(client.lock("orders/42", ttl=30, meta={"command": "backup.sh"}))
        visit = browse(serve(local_url))
        token = visit.line("orders/42").locator(".token")
        assert lease.token >= 10**15  # the first digits are the same for all of a day
        held_long = "element.parentElement.querySelector('.for > :last-child').textContent = '23 h 59 m'"
        for width in (1280, 390):
            visit.page.set_viewport_size({"width": width, "height": 860})
            expect(token).to_have_text(f"token {lease.token}")
            hidden = token.evaluate(f"element => {{ {held_long}; return element.scrollWidth - element.clientWidth; }}")
            assert hidden <= 0, width


def test_several_stores_are_tabs(serve: Serve, browse: Browse, tmp_path: Any, hold: Any) -> None:
    first, second = f"local://{tmp_path}/one.db", f"local://{tmp_path}/two.db"
    with lockline.connect(first) as one, lockline.connect(second) as two:
        hold(one.lock("in-one"))
        hold(two.lock("in-two"))
        visit = browse(serve(first, second))
        visit.line("in-one").wait_for()
        tabs = visit.page.get_by_role("tab")
        expect(tabs).to_have_count(2)
        tabs.nth(0).focus()
        visit.page.keyboard.press("ArrowRight")
        visit.line("in-two").wait_for()
        expect(visit.line("in-one")).to_have_count(0)
        expect(tabs.nth(1)).to_be_focused()
        expect(tabs.nth(1)).to_have_attribute("aria-selected", "true")


def test_a_store_that_was_never_reached_is_not_said_to_be_empty(serve: Serve, browse: Browse) -> None:
    visit = browse(serve(f"redis://127.0.0.1:{free_port()}"))
    expect(visit.page.locator("#trouble")).to_contain_text("The store has not answered yet: Redis cannot be reached")
    expect(visit.page.get_by_text("Nothing is held and nobody waits.")).to_be_hidden()


@pytest.mark.server
def test_a_store_that_falls_silent_and_comes_back_is_said(serve: Serve, browse: Browse, hold: Any) -> None:
    from ..servers.redis import a_redis

    with a_redis(keeps_data=True) as server, lockline.connect(server.url) as client:
        hold(client.lock("kept", ttl=600))
        visit = browse(serve(server.url))
        visit.line("kept").wait_for()
        server.kill()
        expect(visit.page.locator("#state")).to_contain_text("store silent")
        expect(visit.page.locator("#trouble")).to_contain_text("The store does not answer: Redis cannot be reached")
        expect(visit.line("kept")).to_be_visible()
        server.start()
        expect(visit.page.locator("#state")).to_have_text("live")


def test_the_keyboard_alone_is_enough_even_to_evict(
    serve: Serve, browse: Browse, client: lockline.Client, store: str, hold: Any
) -> None:
    lost = hold(client.lock("by-hand"))
    hold(client.lock("other"))
    server = serve(store, options=("--allow-evict",))
    visit = browse(server)
    visit.line("by-hand").wait_for()
    keys = visit.page.keyboard
    keys.press("/")
    expect(visit.page.get_by_role("searchbox")).to_be_focused()
    keys.type("by-hand")
    keys.press("ArrowDown")
    expect(visit.page.get_by_role("button", name="by-hand", exact=True)).to_be_focused()
    keys.press("Enter")
    expect(visit.line("by-hand").get_by_role("table")).to_be_visible()
    evict = visit.page.get_by_role("button", name="Evict tester:1")
    for _ in range(5):
        keys.press("Tab")
        if evict.evaluate("element => element === document.activeElement"):
            break
    expect(evict).to_be_focused()
    keys.press("Enter")
    expect(visit.page.get_by_label("Reason")).to_be_focused()
    visit.keep("question")
    keys.press("Escape")
    expect(visit.page.get_by_role("dialog")).to_be_hidden()
    expect(evict).to_be_focused()
    assert lost.valid
    keys.press("Enter")
    keys.type("hangs since noon")
    keys.press("Tab")
    keys.type("Ada")
    keys.press("Enter")
    expect(visit.page.get_by_role("dialog")).to_be_hidden()
    assert lost.lost.wait(HANGS)
    expect(visit.line("by-hand").locator(".flag")).to_have_text("evicted")
    expect(visit.line("by-hand").locator(".history li").first).to_contain_text("by Ada: hangs since noon")
    asked, done = server.audited()
    assert (asked["outcome"], done["outcome"]) == ("asked", "evicted")
    with pytest.raises(lockline.LeaseLost, match="because it was evicted by Ada: hangs since noon"):
        lost.check()
    assert (done["who"], done["reason"], done["name"]) == ("Ada", "hangs since noon", "by-hand")
    assert (done["token"], done["owner"], done["address"]) == (lost.token, "tester:1", "127.0.0.1")


@on_one_store
def test_without_leave_there_is_no_button(
    serve: Serve, browse: Browse, client: lockline.Client, store: str, hold: Any
) -> None:
    hold(client.lock("safe"))
    visit = browse(serve(store))
    visit.line("safe").get_by_role("button", name="safe").click()
    expect(visit.line("safe").get_by_role("table")).to_be_visible()
    expect(visit.page.get_by_role("button", name=re.compile("Evict"))).to_have_count(0)
    expect(visit.page.get_by_text("This page only shows.")).to_be_visible()


def test_only_the_holder_that_was_on_the_screen_is_evicted(
    serve: Serve, browse: Browse, client: lockline.Client, store: str, waiter: Any, hold: Any
) -> None:
    lease = hold(client.lock("turn"))
    next_one = waiter(store, "turn", "next:1")
    visit = browse(serve(store, options=("--allow-evict",)))
    visit.line("turn").get_by_role("button", name="turn").click()
    visit.page.get_by_role("button", name="Evict tester:1").click()
    lease.release()
    assert next_one.got.wait(HANGS)
    visit.page.get_by_label("Reason").fill("too slow")
    visit.page.get_by_label("Your name").fill("Ada")
    visit.page.get_by_role("button", name="Evict this holder").click()
    expect(visit.page.locator("#evict-problem")).to_contain_text("Nothing was done")
    assert [held.owner for held in client.inspect("turn").holders] == ["next:1"]


def test_a_phone_shows_all_of_it_without_scrolling_sideways(
    serve: Serve, browse: Browse, local_url: str, waiter: Any, hold: Any
) -> None:
    with lockline.connect(local_url, owner="a-host-with-a-rather-long-name.example.internal:123456") as client:
        hold(client.lock("n" * 300, meta={"note": "m" * 1000}))
        hold(client.lock("orders/42"))
        waiter(local_url, "orders/42", "b-host-with-a-rather-long-name.example.internal:123456")
        visit = browse(serve(local_url), width=390, height=844)
        visit.line("orders/42").get_by_role("button", name="orders/42").click()
        visit.line("orders/42").get_by_role("table").wait_for()
        wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        for scheme in SCHEMES:
            visit.page.emulate_media(color_scheme=scheme)
            assert visit.page.evaluate(wide) <= 0
            visit.keep(f"phone-{scheme}")
            ground = visit.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", ground))) < 380) is (scheme == "dark")


def test_the_theme_can_be_chosen_and_is_remembered(serve: Serve, browse: Browse, local_url: str) -> None:
    visit = browse(serve(local_url), scheme="dark")
    visit.page.get_by_role("button", name="Theme: system").click()
    visit.page.get_by_role("button", name="Theme: dark").click()
    visit.page.reload()
    expect(visit.page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert visit.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(245, 246, 248)"


CONTRAST = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = numbers(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!says || !element.checkVisibility() || element.closest(".unseen, .skip, noscript, option")) continue;
    const [one, other] = [light(numbers(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push(`${element.className || element.tagName}: ${ratio.toFixed(2)} ${element.textContent.slice(0, 40)}`);
  }
  return poor;
}"""


def test_every_text_stands_out_from_its_ground_and_everything_has_a_name(
    serve: Serve, browse: Browse, local_url: str, waiter: Any, hold: Any
) -> None:
    with lockline.connect(local_url) as client:
        hold(client.lock("orders/42", meta={"batch": "november"}))
        hold(client.lock("late", ttl=600, renew=False))
        hold(client.semaphore("gpu", limit=3))
        waiter(local_url, "orders/42", "w1:1")
        visit = browse(serve(local_url, options=("--allow-evict",)))
        visit.line("orders/42").get_by_role("button", name="orders/42").click()
        visit.line("orders/42").get_by_role("table").wait_for()
        for scheme in SCHEMES:
            visit.page.emulate_media(color_scheme=scheme)
            visit.keep(f"desktop-{scheme}")
            assert visit.page.evaluate(CONTRAST) == []
        unnamed = "() => [...document.querySelectorAll('button, input, select, textarea')].filter((e) => e.checkVisibility() && !e.ariaLabel && !e.labels?.length && !e.textContent.trim()).map((e) => e.outerHTML)"
        assert visit.page.evaluate(unnamed) == []
        for landmark in ("banner", "main", "contentinfo", "search"):
            expect(visit.page.get_by_role(landmark)).to_have_count(1)
        expect(visit.page.get_by_role("heading", level=1)).to_have_text("Lines")


@pytest.mark.parametrize("flavour", ["asgi", "wsgi"])
def test_the_page_shows_memory_in_the_browser_and_evicts_under_the_users_login(
    browse: Browse, flavour: str, hold: Any, tmp_path: Path
) -> None:
    with lockline.connect(f"memory:{flavour}", owner="me:1") as client:
        lease = hold(client.lock("orders/42"))
        options: dict[str, Any] = {
            "allow_evict": True,
            "audit": tmp_path / "audit",
            "user": lambda request: "ada@example",
        }
        served = (
            under_uvicorn(web.asgi(client, **options))
            if flavour == "asgi"
            else under_wsgiref(web.wsgi(client, **options))
        )
        with served as server:
            visit = browse(server)
            visit.line("orders/42").get_by_role("button", name="orders/42").click()
            visit.page.get_by_role("button", name="Evict me:1").click()
            expect(visit.page.get_by_label("Your name")).to_be_hidden()
            visit.page.get_by_label("Reason").fill("stuck")
            visit.page.get_by_role("button", name="Evict this holder").click()
            expect(visit.line("orders/42").locator(".flag")).to_have_text("evicted")
            assert lease.lost.wait(HANGS)
            visit.page.goto("about:blank")
        written = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
        assert [(line["outcome"], line["who"]) for line in written] == [
            ("asked", "ada@example"),
            ("evicted", "ada@example"),
        ]
