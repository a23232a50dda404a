"""What needs no framework: GPUs, shared fixtures, an S3 writer, agents in one tree."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from ..servers.process import ServerProcess, free_port, listens
from ..tier import sample
from .conftest import PATIENCE, ROOT, Recipe

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_jobs_share_cards_and_never_one_of_them(recipe: Recipe) -> None:
    recipe.lay_out("gpu")
    recipe.environment["LOCKLINE_URL"] = ""
    assert recipe.python("train.py").startswith("training on ")
    job = 'echo "begin $CUDA_VISIBLE_DEVICES $$" >> log; sleep 0.1; echo "end $CUDA_VISIBLE_DEVICES $$" >> log'
    cards, number = sample(("0-1", 4), ("0-3", 8))
    words = ["lockline", "run", "--pool", f"gpu={cards}", "--cuda", "--quiet", "--", "sh", "-c", job]
    jobs = [recipe.start(*words, log=f"job-{i}.log") for i in range(number)]
    assert [one.wait(PATIENCE) for one in jobs] == [0] * number
    inside: set[str] = set()
    for line in recipe.read("log").splitlines():
        what, card, _ = line.split()
        assert card in "0123"
        assert (card in inside) == (what == "end"), recipe.read("log")
        (inside.add if what == "begin" else inside.discard)(card)


def test_workers_of_xdist_share_what_one_of_them_made(recipe: Recipe) -> None:
    recipe.lay_out("pytest")
    recipe.environment["LOCKLINE_URL"] = ""
    words = ["-q", "-p", "no:cacheprovider", "-p", "xdist.plugin", "-n", str(sample(2, 3)), "test_shop.py"]
    said = recipe.python("-m", "pytest", *words, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "8 passed" in said
    assert recipe.read("made.txt") == "made\n"


def test_the_plugin_loses_leases_on_demand(recipe: Recipe) -> None:
    recipe.lay_out("pytest", {"lost.wait(1)": "lost.wait(120)"})
    plugin = ["-p", "no:cacheprovider", "-p", "lockline.testing"]
    said = recipe.python(
        "-m", "pytest", "-q", *plugin, "test_pay.py", "test_worker.py", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
    )
    assert "3 passed" in said


@pytest.fixture
def s3_url(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    program = ROOT / "tests" / "fence" / "s3server.py"
    server = ServerProcess([sys.executable, str(program), str(port)], tmp_path / "s3", lambda: listens(port))
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


def test_exports_to_s3_build_on_each_other(recipe: Recipe, s3_url: str) -> None:
    recipe.lay_out("s3")
    access = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    recipe.environment |= {**access, "S3_ENDPOINT": s3_url}
    s3 = boto3.client(
        "s3", endpoint_url=s3_url, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1"
    )
    s3.create_bucket(Bucket="reports")
    writers = [recipe.start(sys.executable, "export.py", f"line-{i}", log=f"writer-{i}.log") for i in range(2)]
    assert [writer.wait(PATIENCE) for writer in writers] == [0] * 2, recipe.read("writer-0.log")
    written = s3.get_object(Bucket="reports", Key="daily.txt")["Body"].read().decode().split()
    s3.close()
    assert sorted(written) == ["line-0", "line-1"]


def test_agents_in_one_tree_lose_none_of_each_others_changes(recipe: Recipe) -> None:
    recipe.lay_out("agents")
    recipe.environment["LOCKLINE_URL"] = ""
    for name in ("a.py", "b.py"):
        (recipe.folder / name).touch()
    times = sample(1, 2)
    orders = times * [["a.py", "b.py"], ["b.py", "a.py"], ["./a.py"], ["b.py", "./b.py"]]
    agents = [
        recipe.start(sys.executable, "edit.py", f"agent-{i}", "rename", *files, log=f"agent-{i}.log")
        for i, files in enumerate(orders)
    ]
    assert [agent.wait(PATIENCE) for agent in agents] == [0] * len(orders), recipe.read("agent-0.log")
    assert len(recipe.read("a.py").splitlines()) == 3 * times
    assert len(recipe.read("b.py").splitlines()) == 3 * times
