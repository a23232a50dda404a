"""What is uploaded: it can be built, says what it has to, and works alone in an empty environment."""

from __future__ import annotations

import email
import os
import runpy
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def run(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    ran = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_index_would_take_it(built: Path) -> None:
    said = run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir()))
    assert said.count("PASSED") == 2


def test_it_says_what_it_is_and_where(wheel: Path) -> None:
    told = metadata(wheel)
    assert {line.split(",")[0] for line in told.get_all("Project-URL", [])} >= {"Documentation", "Changelog"}
    classifiers = told.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    assert "Framework :: Pytest" in classifiers
    assert not [line for line in told.get_all("Requires-Dist", []) if "extra ==" not in line], "the base needs nothing"


def test_the_wheel_has_types_the_man_page_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "lockline/py.typed" in names
    assert [name for name in names if name.endswith("share/man/man1/lockline.1")]
    assert not [name for name in names if name.startswith("tests")]


def test_the_source_archive_has_the_docs(built: Path) -> None:
    (found,) = built.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"docs/start.md", "README.md", "LICENSE", "CHANGELOG.md", "src/lockline/py.typed"} <= names


def test_in_an_empty_environment_it_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    """Takes some 20 s: a holder is frozen for longer than its ttl, twice."""
    venv.create(tmp_path / "empty")
    python = str(tmp_path / "empty" / "bin" / "python")
    # By our own pip: to put one there first takes longer than all the rest.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check"]
    run(*pip, "--no-index", str(wheel))
    # Nothing of this environment: no source of ours on the path, no store but that of the folder.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LOCKLINE"))}
    env |= {"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    where = run(python, "-c", "import lockline; print(lockline.__version__, lockline.__file__)", env=env)
    assert str(tmp_path / "empty") in where
    demo = (ROOT / "examples" / "demo.py").read_text()
    # Fewer processes, and a lease that a busy machine renews in time.
    for ours, theirs in {
        "PROCESSES, TIMES = 8, 50\n": "PROCESSES, TIMES = 4, 50\n",
        "TTL = 1.0\n": "TTL = 5.0\n",
    }.items():
        assert ours in demo
        demo = demo.replace(ours, theirs)
    (tmp_path / "demo.py").write_text(demo)
    assert "as it should be" in run(python, "demo.py", cwd=tmp_path, env=env)


def test_the_man_page_says_what_the_commands_say(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "scripts" / "man_page.py"), run_name="__main__")
    assert (ROOT / "docs" / "man" / "lockline.1").read_text() == capsys.readouterr().out, (
        "python scripts/man_page.py > docs/man/lockline.1"
    )
