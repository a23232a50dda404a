"""FastAPI, Flask and Django, each in several processes, under requests that come at once."""

from __future__ import annotations

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import lockline

from .conftest import Recipe

pytestmark = [pytest.mark.server, pytest.mark.slow]


def answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=5)
    except httpx.TransportError:
        return False
    return True


def post_many(url: str, times: int, **options: object) -> list[httpx.Response]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: httpx.post(url, timeout=60, **options), range(times)))  # type: ignore[arg-type]


def test_requests_of_fastapi_take_turns_and_are_told_when_they_cannot(
    recipe: Recipe, redis_url: str, port: int
) -> None:
    recipe.lay_out("fastapi")
    recipe.start(sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), log="server.log")
    base = f"http://127.0.0.1:{port}"
    recipe.wait(lambda: answers(base), "server.log")
    answered = post_many(f"{base}/stock/apples", 12)
    assert {answer.status_code for answer in answered} == {200}, recipe.read("server.log")
    assert sorted(answer.json()["stock"] for answer in answered) == list(range(1, 13))
    tokens = [answer.json()["token"] for answer in sorted(answered, key=lambda answer: int(answer.json()["stock"]))]
    assert tokens == sorted(set(tokens))
    with lockline.connect(redis_url) as client, client.lock("stock/pears"):
        refused = httpx.post(f"{base}/stock/pears", timeout=60)
        assert refused.status_code == 423
        assert refused.headers["retry-after"] == "1"
    assert httpx.post(f"{base}/stock/pears", timeout=60).json()["stock"] == 1


SLOW = """
import asyncio
from app import ItemLease, app

@app.post("/slow/{item}")
async def slow(item: str, lease: ItemLease) -> None:
    await asyncio.sleep(600)
"""


def test_a_request_of_fastapi_whose_lease_is_taken_away_is_cut_short(recipe: Recipe, redis_url: str, port: int) -> None:
    recipe.lay_out("fastapi")
    (recipe.folder / "slow.py").write_text(SLOW)
    recipe.start(sys.executable, "-m", "uvicorn", "slow:app", "--port", str(port), log="server.log")
    base = f"http://127.0.0.1:{port}"
    recipe.wait(lambda: answers(base), "server.log")
    with ThreadPoolExecutor(1) as pool, lockline.connect(redis_url) as operator:
        asked = pool.submit(httpx.post, f"{base}/slow/plums", timeout=60)
        recipe.wait(lambda: operator.evict("stock/plums"), "server.log")
        answer = asked.result()
    assert (answer.status_code, "stock/plums" in answer.json()["detail"]) == (503, True), recipe.read("server.log")


def test_flask_in_workers_that_were_forked_loses_no_update(recipe: Recipe, redis_url: str, port: int) -> None:
    recipe.lay_out("flask")
    words = [
        "-m",
        "gunicorn",
        "--preload",
        "--workers",
        "2",
        "--threads",
        "4",
        "--bind",
        f"127.0.0.1:{port}",
        "shop:app",
    ]
    recipe.start(sys.executable, *words, log="server.log")
    base = f"http://127.0.0.1:{port}"
    recipe.wait(lambda: answers(base), "server.log")
    answered = post_many(f"{base}/stock/apples", 24)
    assert {answer.status_code for answer in answered} == {200}, recipe.read("server.log")
    assert recipe.read("apples.txt") == "24"
    with lockline.connect(redis_url) as client:
        assert client.list("stock/") == []


def test_pods_of_django_migrate_one_after_the_other_and_their_views_lose_nothing(recipe: Recipe, port: int) -> None:
    recipe.lay_out("django")
    pods = [recipe.start(sys.executable, "manage.py", "migrate", log=f"migrate-{pod}.log") for pod in range(3)]
    assert [pod.wait(120) for pod in pods] == [0, 0, 0], [recipe.read(f"migrate-{pod}.log") for pod in range(3)]
    said = [recipe.read(f"migrate-{pod}.log") for pod in range(3)]
    assert sum("Applying shop.0001_initial" in text for text in said) == 1
    assert sum("No migrations to apply" in text for text in said) == 2

    assert recipe.python("manage.py", "nightly").split() == ["reporting", "ran"]
    assert recipe.python("manage.py", "nightly").split() == ["done"]

    with sqlite3.connect(recipe.folder / "shop.db") as database:
        database.execute("INSERT INTO shop_account VALUES (7, 0)")
    words = ["-m", "gunicorn", "--workers", "2", "--threads", "2", "--bind", f"127.0.0.1:{port}", "shop.wsgi"]
    recipe.start(sys.executable, *words, log="server.log")
    base = f"http://127.0.0.1:{port}"
    recipe.wait(lambda: answers(base), "server.log")
    answered = post_many(f"{base}/accounts/7", 16, data={"amount": "5"})
    assert {answer.status_code for answer in answered} == {200}, recipe.read("server.log")
    assert max(answer.json()["balance"] for answer in answered) == 80
    assert sorted(answer.json()["balance"] for answer in answered) == list(range(5, 85, 5))
