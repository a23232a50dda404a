"""FastAPI, Flask and Django, each in several processes, under requests that come at once."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest

import lockline

from ..tier import sample
from .conftest import PATIENCE, Recipe

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def visitor() -> Iterator[httpx.Client]:
    """One for all: each would read all certificates of the machine."""
    with httpx.Client(timeout=PATIENCE, verify=False) as visitor:
        yield visitor


def serve(recipe: Recipe, visitor: httpx.Client, port: int, *words: str) -> str:
    """The address of a server that answers."""
    recipe.start(sys.executable, "-m", *words, log="server.log")
    base = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            visitor.get(base)
        except httpx.TransportError:
            return False
        return True

    recipe.wait(answers, "server.log")
    return base


def post_many(visitor: httpx.Client, url: str, times: int, **options: Any) -> list[httpx.Response]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: visitor.post(url, **options), range(times)))


SLOW = """
import asyncio
from app import ItemLease, app

@app.post("/slow/{item}")
async def slow(item: str, lease: ItemLease) -> None:
    await asyncio.sleep(600)
"""


def test_requests_of_fastapi_take_turns_and_are_told_when_they_cannot_and_are_cut_short_with_their_lease(
    recipe: Recipe, redis_url: str, visitor: httpx.Client, port: int
) -> None:
    # Pears are waited for in vain, and nothing else.
    recipe.lay_out("fastapi", {"acquire(timeout=2)": 'acquire(timeout=1 if item == "pears" else 180)'})
    (recipe.folder / "slow.py").write_text(SLOW)
    base = serve(recipe, visitor, port, "uvicorn", "slow:app", "--port", str(port))
    answered = post_many(visitor, f"{base}/stock/apples", 12)
    assert {answer.status_code for answer in answered} == {200}, recipe.read("server.log")
    assert sorted(answer.json()["stock"] for answer in answered) == list(range(1, 13))
    tokens = [answer.json()["token"] for answer in sorted(answered, key=lambda answer: int(answer.json()["stock"]))]
    assert tokens == sorted(set(tokens))
    with lockline.connect(redis_url) as client, client.lock("stock/pears", ttl=60):
        refused = visitor.post(f"{base}/stock/pears")
        assert refused.status_code == 423
        assert refused.headers["retry-after"] == "1"
    with ThreadPoolExecutor(1) as pool, lockline.connect(redis_url) as operator:
        asked = pool.submit(visitor.post, f"{base}/slow/plums")
        recipe.wait(lambda: operator.evict("stock/plums"), "server.log")
        answer = asked.result()
    assert (answer.status_code, "stock/plums" in answer.json()["detail"]) == (503, True), recipe.read("server.log")


def test_flask_in_workers_that_were_forked_loses_no_update(
    recipe: Recipe, redis_url: str, visitor: httpx.Client, port: int
) -> None:
    recipe.lay_out("flask", {"timeout=10)": "timeout=180)"})
    words = [
        "--preload",
        "--workers",
        "2",
        "--threads",
        "4",
        "--bind",
        f"127.0.0.1:{port}",
        "--timeout",
        "240",
        "shop:app",
    ]
    base = serve(recipe, visitor, port, "gunicorn", *words)
    answered = post_many(visitor, f"{base}/stock/apples", 16)
    assert {answer.status_code for answer in answered} == {200}, recipe.read("server.log")
    assert recipe.read("apples.txt") == "16"
    with lockline.connect(redis_url) as client:
        assert client.list("stock/apples") == []


@pytest.mark.usefixtures("one_day")
def test_pods_of_django_migrate_one_after_the_other_and_their_views_lose_nothing(
    recipe: Recipe, visitor: httpx.Client, port: int
) -> None:
    recipe.lay_out("django", {"timeout=5)": "timeout=180)", '"timeout": 30': '"timeout": 180'})
    pods = range(sample(2, 3))
    migrations = [recipe.start(sys.executable, "manage.py", "migrate", log=f"migrate-{pod}.log") for pod in pods]
    ended = [migration.wait(PATIENCE) for migration in migrations]
    said = [recipe.read(f"migrate-{pod}.log") for pod in pods]
    assert set(ended) == {0}, said
    assert sum("Applying shop.0001_initial" in text for text in said) == 1
    assert sum("No migrations to apply" in text for text in said) == len(pods) - 1

    assert recipe.python("manage.py", "nightly").split() == ["reporting", "ran"]
    assert recipe.python("manage.py", "nightly").split() == ["done"]

    with closing(sqlite3.connect(recipe.folder / "shop.db")) as database, database:
        database.execute("INSERT INTO shop_account VALUES (7, 0)")
    words = ["--workers", "2", "--threads", "2", "--bind", f"127.0.0.1:{port}", "--timeout", "240", "shop.wsgi"]
    base = serve(recipe, visitor, port, "gunicorn", *words)
    answered = post_many(visitor, f"{base}/accounts/7", 12, data={"amount": "5"})
    assert {answer.status_code for answer in answered} == {200}, recipe.read("server.log")
    assert sorted(answer.json()["balance"] for answer in answered) == list(range(5, 65, 5))
