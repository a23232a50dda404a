"""The page in a real browser: the matrix is there, a cell opens its picture, and a phone is wide enough."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockline.lab.draw.page import page
from lockline.lab.draw.svg import svg
from lockline.lab.trace import TraceEvent
from lockline.lab.verdicts import Outcome, Verdict

from ..servers.process import missing
from ..tier import FULL
from .conftest import Ran

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1200)]
SHOTS = Path(__file__).parents[2] / ".test-logs"
FROZEN = 'button[data-run="set-nx-ex/frozen"]'
FENCED = 'button[data-run="lockline-redis-fence/frozen"]'


@pytest.fixture(scope="module")
def written(ran: Ran, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "lab.html"
    file.write_text(page(ran.outcomes, ran.lab.locks, ran.lab.failures, ran.seconds))
    SHOTS.mkdir(exist_ok=True)
    (SHOTS / "lab.html").write_text(file.read_text())
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    if program is None:
        missing("chromium is not installed; `make setup` installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


class Visit:
    """One look at the page; errors of its script and requests to elsewhere are kept."""

    def __init__(self, browser: Any, file: Path, *, width: int, height: int, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda line: self.problems.append(line.text) if line.type == "error" else None)
        self.page.on(
            "request", lambda asked: self.problems.append(asked.url) if not asked.url.startswith("file:") else None
        )
        self.page.goto(file.as_uri())

    def shot(self, name: str) -> None:
        """A screenshot, to be looked at; in `make test-full` alone, since a test sees nothing in it."""
        if FULL:
            self.page.screenshot(path=str(SHOTS / f"lab-{name}.png"))


def test_the_matrix_is_there_and_a_cell_opens_its_picture(browser: Any, written: Path, ran: Ran) -> None:
    visit = Visit(browser, written, width=1440, height=1000)
    assert visit.page.locator("#matrix tbody tr").count() == len(ran.lab.locks)
    assert visit.page.locator("#matrix thead th").count() == len(ran.lab.failures)
    judged = sum(outcome.verdict.judged for outcome in ran.outcomes.values())
    assert visit.page.locator("#matrix button").count() == judged
    visit.shot("matrix")
    visit.page.locator(FROZEN).click()
    drawn = visit.page.locator("#run-picture svg")
    assert drawn.is_visible()
    assert "update lost" in (drawn.text_content() or "")
    assert "frozen" in (drawn.text_content() or "")
    visit.shot("cell")
    visit.page.keyboard.press("Escape")
    assert not drawn.is_visible()
    visit.page.locator(FENCED).click()
    assert "refused by the fence" in (visit.page.locator("#run-picture svg").text_content() or "")
    visit.shot("fenced")
    assert visit.problems == []


def test_every_cell_opens_without_an_error(browser: Any, written: Path) -> None:
    visit = Visit(browser, written, width=1440, height=1000)
    opened = visit.page.evaluate(
        """() => [...document.querySelectorAll("#matrix button")].map((button) => {
            button.click();
            const drawn = document.querySelector("#run-picture svg");
            return [button.dataset.run, drawn !== null, document.getElementById("run-cause").textContent];
        })"""
    )
    assert [name for name, drawn, cause in opened if not cause or not drawn] == []
    assert visit.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_on_a_phone(browser: Any, written: Path, scheme: str) -> None:
    visit = Visit(browser, written, width=390, height=844, scheme=scheme)
    visit.shot(f"phone-{scheme}")
    # The matrix scrolls in its own frame; the page itself does not move sideways.
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.page.locator(FROZEN).click()
    box = visit.page.locator("#run").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    size = visit.page.evaluate("parseFloat(getComputedStyle(document.getElementById('run-cause')).fontSize)")
    assert size >= 14
    visit.shot(f"phone-cell-{scheme}")
    assert visit.problems == []


def test_nothing_of_the_page_comes_from_elsewhere(written: Path) -> None:
    text = written.read_text()
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    assert "@import" not in text
    assert "url(http" not in text


def test_a_server_that_is_missing_is_named_with_the_command_that_installs_it(ran: Ran) -> None:
    outcome = Outcome("setnx", "frozen", Verdict.MISSING, "redis-server is missing: apt-get install redis-server")
    text = page({("setnx", "frozen"): outcome}, ran.lab.locks, ran.lab.failures, 1.0)
    assert "Not run: redis-server is missing: apt-get install redis-server" in text


def test_names_are_escaped(ran: Ran) -> None:
    evil = '"><script>alert(1)</script>'
    outcome = Outcome(
        "setnx",
        "frozen",
        Verdict.SAFE,
        evil,
        cause=evil,
        events=(TraceEvent(0, evil, "asked", evil), TraceEvent(1, evil, "granted", evil)),
    )
    assert "<script" not in svg(outcome)
    text = page({("setnx", "frozen"): outcome}, ran.lab.locks, ran.lab.failures, 1.0)
    assert "<script>alert" not in text
