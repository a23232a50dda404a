"""Every program in docs/fencing.md runs, each in a process and a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "fencing.md"
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.server
@pytest.mark.parametrize(("language", "program"), BLOCKS, ids=range(1, len(BLOCKS) + 1))
def test_the_program_runs(language: str, program: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if "postgresql://" in program:
        import psycopg

        url = request.getfixturevalue("postgres").url
        with psycopg.connect(url) as connection:
            connection.execute("DROP TABLE IF EXISTS lockline_fence, orders")
        program = program.replace("postgresql://localhost/shop", url)
    if "redis://" in program:
        server = request.getfixturevalue("redis_server")
        server.command("FLUSHALL")
        program = program.replace("redis://localhost:6379", server.url)
    if "localhost:9000" in program:
        program = program.replace("http://localhost:9000", request.getfixturevalue("s3_url"))
    scripts = Path(sys.executable).parent
    argv = [sys.executable, "-W", "error", "-c", program] if language == "python" else ["sh", "-ec", program]
    ran = subprocess.run(
        argv,
        cwd=tmp_path,
        env={
            **os.environ,
            "XDG_STATE_HOME": str(tmp_path),
            "LOCKLINE_URL": "",
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        },
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ran.returncode == 0, ran.stderr
    if language == "sh":
        assert ran.stdout == "seven may pass\n"
        assert (tmp_path / "order-42.txt").read_text() == "paid\n"


def test_there_is_a_program_for_every_fence() -> None:
    programs = "\n".join(program for _, program in BLOCKS)
    for name in (
        "SqlFence",
        "RedisFence",
        "FileFence",
        "HttpFence",
        "S3Fence",
        "sequencer",
        "exact=True",
        "remaining()",
    ):
        assert name in programs
