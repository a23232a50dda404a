"""Packages that bring a scheme: found by their entry point, and told apart from those that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lockline
from lockline import ConfigError
from lockline.backends import default, plugins

WHOLE = """
from lockline.backends import memory

def connect(target, runtime, *, room=""):
    return memory.connect(f"memory:brought{room}", runtime)
"""
Install = Callable[..., None]
ROOT = Path(__file__).parents[2]
BAKERY = Path(__file__).parent / "bakery"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A package as pip would leave it: a module and what is said about it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(package: str, scheme: str, source: str = WHOLE, attribute: str = "connect") -> None:
        module = f"{package}_of_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        about = tmp_path / f"{package}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{scheme} = {module}:{attribute}\n")

    return install


def test_a_package_brings_a_scheme(install: Install) -> None:
    install("shelf", "shelf")
    with lockline.connect("shelf://anywhere") as client, client.lock("x") as lease:
        assert lease.valid
    assert lockline.connect("shelf:", room="-two").url == "memory:brought-two"
    assert default.store("shelf:", require="shelf").url == "shelf:"
    assert default.store("shelf:", require="server").url == "shelf:"
    with pytest.raises(ConfigError, match="not a shelf store"):
        default.store("memory:", require="shelf")


def test_an_option_that_it_does_not_know_is_named(install: Install) -> None:
    install("shelf", "shelf")
    with pytest.raises(ConfigError, match="shelf has no option 'colour'"):
        lockline.connect("shelf:", colour="red")


def test_an_unknown_scheme_is_told_with_all_that_are_known(install: Install) -> None:
    install("shelf", "shelf")
    with pytest.raises(ConfigError, match=r"scheme that Lockline knows \(memory:, .*etcd:,.* shelf:\)"):
        lockline.connect("shelve:")
    with pytest.raises(ConfigError, match=r"can ask for server, .*, shelf"):
        default.store("shelf:", require="shelve")


def test_two_packages_for_one_scheme_are_one_too_many(install: Install) -> None:
    install("shelf", "shelf")
    install("board", "shelf")
    with pytest.raises(ConfigError, match=r"more than one package: board \(.*\) and shelf \(.*\); uninstall"):
        lockline.connect("shelf:")


def test_a_package_cannot_take_a_scheme_of_lockline_itself(install: Install) -> None:
    install("thief", "memory", "raise AssertionError('imported')")
    with lockline.connect("memory:mine") as client:
        assert client.url == "memory:mine"


@pytest.mark.parametrize(
    ("source", "attribute", "says"),
    [
        (
            "import no_such_module_anywhere",
            "connect",
            "cannot be loaded: ModuleNotFoundError: .*no_such_module_anywhere",
        ),
        ("1 / 0", "connect", "cannot be loaded: ZeroDivisionError"),
        ("", "connect", "cannot be loaded: AttributeError"),
        ("connect = 5", "connect", "nothing that can be called"),
        ("connect = lambda target, runtime: object()", "connect", "it lacks attend, close, enter, evict"),
    ],
)
def test_a_package_that_cannot_be_used_is_named_with_its_fault(
    install: Install, source: str, attribute: str, says: str
) -> None:
    install("shelf", "shelf", source, attribute)
    with pytest.raises(ConfigError, match=f"shelf: comes from shelf, and its .* {says}"):
        lockline.connect("shelf:")


def test_the_page_shows_the_outside_backend_as_it_is_and_it_is_short() -> None:
    page = (ROOT / "docs" / "write-a-backend.md").read_text()
    source = (BAKERY / "lockline_bakery.py").read_text()
    assert source in page
    assert (BAKERY / "pyproject.toml").read_text().partition("\n\n")[2].strip() in page
    assert len(source.splitlines()) <= 150


def test_whoever_uses_no_package_does_not_pay_for_looking() -> None:
    program = "import sys, lockline; lockline.connect('memory:').close(); print('importlib.metadata' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert told.stdout.strip() == "False"
