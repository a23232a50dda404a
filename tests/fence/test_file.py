"""A file behind a fence."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import lockline
from lockline import BackendUnavailable, ConfigError, StaleToken
from lockline.fence import AsyncFileFence, FileFence, FileMarks, Offer

from .test_rule import BAD_TOKENS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "orders.json"


def test_a_holder_writes_many_times_and_an_older_one_never_again(file: Path) -> None:
    fence = FileFence()
    fence.enter(file, 5, lock="l")
    fence.replace(file, 5, "one", lock="l")
    fence.append(file, 5, b" two", lock="l")
    assert file.read_text() == "one two"
    assert fence.read(file, 6, lock="l") == b"one two"
    for write in (fence.replace, fence.append):
        with pytest.raises(StaleToken) as refused:
            write(file, 5, "late", lock="l")
        assert (refused.value.offered, refused.value.highest) == (5, 6)
    assert file.read_text() == "one two"
    assert fence.look(file, "l") == (6, "")


def test_a_lease_is_all_it_needs(file: Path) -> None:
    fence = FileFence()
    with lockline.connect("memory:") as client:
        with client.lock("orders") as lease:
            fence.enter(file, lease)
            fence.replace(file, lease, "1")
            first = Offer(lease.name, lease.token, lease.id)
        with client.lock("orders") as lease:
            fence.enter(file, lease)
            with pytest.raises(StaleToken):
                fence.replace(file, first, "2")
    assert file.read_text() == "1"


def test_two_locks_at_one_file_count_apart(file: Path) -> None:
    fence = FileFence()
    fence.enter(file, 100, lock="a")
    fence.enter(file, 1, lock="b")
    fence.replace(file, 1, "x", lock="b")
    assert (fence.look(file, "a"), fence.look(file, "b")) == ((100, ""), (1, ""))


def test_every_way_to_a_file_leads_to_the_same_mark(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = FileFence()
    fence.replace(file, 5, "x", lock="l")
    link = tmp_path / "link.json"
    link.symlink_to(file)
    monkeypatch.chdir(tmp_path)
    for other in (link, "orders.json", f"{tmp_path}/./orders.json"):
        with pytest.raises(StaleToken):
            fence.replace(other, 4, "late", lock="l")
    fence.replace(link, 6, "through the link", lock="l")
    assert link.is_symlink()
    assert file.read_text() == "through the link"


def test_a_replaced_file_keeps_its_mode(file: Path) -> None:
    file.write_text("old")
    file.chmod(0o640)
    FileFence().replace(file, 1, "new")
    assert file.stat().st_mode & 0o777 == 0o640


def test_the_largest_tokens_are_told_apart(file: Path) -> None:
    fence = FileFence()
    fence.enter(file, 2**63 - 2)
    fence.enter(file, 2**63 - 1)
    with pytest.raises(StaleToken):
        fence.enter(file, 2**63 - 2)


def test_the_exact_rule_at_a_file(file: Path) -> None:
    fence = FileFence(exact=True)
    fence.enter(file, "job-9")
    fence.replace(file, "job-9", "nine")
    fence.enter(file, "job-1")
    with pytest.raises(StaleToken):
        fence.replace(file, "job-9", "late")
    fence.append(file, "job-1", " one")
    assert file.read_text() == "nine one"


@pytest.mark.parametrize("token", BAD_TOKENS, ids=repr)
def test_a_bad_token_writes_nothing(file: Path, token: object) -> None:
    fence = FileFence()
    for act in (fence.enter, fence.read, lambda p, t: fence.replace(p, t, "x"), lambda p, t: fence.append(p, t, "x")):
        with pytest.raises(ConfigError):
            act(file, token)
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize("path", ["", ".", "a\0b", "no/such/folder/file", b"bytes"], ids=repr)
def test_a_bad_path_writes_nothing(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        FileFence().replace(path, 1, "x")
    assert list(tmp_path.iterdir()) == []


def test_data_that_is_neither_bytes_nor_text_writes_nothing(file: Path) -> None:
    with pytest.raises(ConfigError):
        FileFence().replace(file, 1, 5)  # type: ignore[arg-type]
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", "null", '{"lockline-fence": 2, "marks": {}}', '{"lockline-fence": 1, "marks": {"l": ["5", ""]}}',
     '{"lockline-fence": 1, "marks": {"l": [true, ""]}}', '{"lockline-fence": 1, "marks": [1]}', "\x00\x01"],
)  # fmt: skip
def test_marks_of_another_shape_are_refused_and_left_alone(file: Path, content: str) -> None:
    marks = file.parent / ".orders.json.fence"
    marks.write_text(content)
    with pytest.raises(ConfigError, match="nothing was changed"):
        FileFence().replace(file, 5, "x", lock="l")
    assert marks.read_text() == content
    assert not file.exists()


def test_one_who_stays_inside_is_waited_for_and_then_reported(file: Path) -> None:
    fence = FileFence(patience=0.1)
    fence.enter(file, 1)
    fd = os.open(file.parent / ".orders.json.fence.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(BackendUnavailable, match="stayed inside"):
        fence.enter(file, 2)
    os.close(fd)
    fence.enter(file, 2)


def test_threads_that_append_lose_nothing(file: Path) -> None:
    fence = FileFence()

    def work() -> None:
        for _ in range(20):
            fence.append(file, 1, "x\n")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_text() == "x\n" * 80
    assert json.loads((file.parent / ".orders.json.fence").read_text())["marks"] == {str(file): [1, ""]}


def test_the_same_awaited(file: Path) -> None:
    async def story() -> None:
        fence = AsyncFileFence()
        await fence.enter(file, 5, lock="l")
        await fence.replace(file, 5, "one", lock="l")
        await fence.append(file, 5, " two", lock="l")
        assert await fence.read(file, 6, lock="l") == b"one two"
        with pytest.raises(StaleToken):
            await fence.append(file, 5, " late", lock="l")

    asyncio.run(story())


def test_a_cancelled_write_has_ended_when_the_cancel_comes_out(file: Path) -> None:
    def content() -> bytes | None:
        return file.read_bytes() if file.exists() else None

    async def story() -> None:
        fence = AsyncFileFence()
        for number in range(1, 20):
            task = asyncio.create_task(fence.replace(file, number, str(number), lock="l"))
            await asyncio.sleep(0.0002 * number)
            task.cancel()
            await asyncio.wait((task,))
            before = content()
            await asyncio.sleep(0.01)
            assert content() == before

    asyncio.run(story())


def test_marks_in_a_folder_let_one_in_at_a_time(tmp_path: Path) -> None:
    marks = FileMarks(tmp_path)
    offer = Offer("l", 5, "g")
    assert marks.admit_at_once("r", offer, writes=True) is None, "the mark has to be raised first"
    marks.admit("r", offer, writes=True, patience=1)()
    leave = marks.admit_at_once("r", offer, writes=True)
    assert leave is not None
    assert marks.admit_at_once("r", offer, writes=True) is None
    with pytest.raises(BackendUnavailable):
        marks.admit("r", Offer("l", 6, ""), writes=True, patience=0.05)
    marks.admit("another", Offer("l", 6, ""), writes=True, patience=0.05)()
    leave()
    with pytest.raises(StaleToken):
        marks.admit("r", Offer("l", 4, ""), writes=True, patience=1)
    with pytest.raises(StaleToken):
        marks.admit_at_once("r", Offer("l", 5, "h"), writes=True)
    assert marks.look("r", "l") == (5, "g")
    with pytest.raises(ConfigError):
        FileMarks(tmp_path / "nowhere")


FORK = """
import os, signal, sys
from lockline.fence import FileMarks, Offer
marks, offer = FileMarks(sys.argv[1]), Offer("l", 5, "")
marks.admit("r", offer, writes=True, patience=1)()
leave = marks.admit("r", offer, writes=True, patience=1)
child = os.fork()
if child == 0:
    signal.pause()
leave()
try:
    assert marks.admit_at_once("r", offer, writes=True) is not None, "the child keeps the fence shut"
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def test_a_child_that_was_forked_inside_does_not_keep_the_fence_shut(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], check=True, timeout=60)


@pytest.mark.parametrize("draft", [".data.fence.new", ".data.fence.data"])
def test_a_link_that_a_stranger_planted_leads_no_write_elsewhere(tmp_path: Path, draft: str) -> None:
    folder, precious = tmp_path / "shared", tmp_path / "precious"
    folder.mkdir()
    precious.write_bytes(b"mine")
    (folder / draft).symlink_to(precious)
    fence = FileFence()
    fence.replace(folder / "data", 5, b"new", lock="x")
    assert precious.read_bytes() == b"mine"
    assert fence.read(folder / "data", 5, lock="x") == b"new"
    assert not (folder / "data").is_symlink()


@pytest.mark.parametrize("name", ["orders.json", ".orders.json.fence", ".orders.json.fence.lock"])
def test_a_fifo_in_the_place_of_a_file_is_refused_and_not_waited_for(file: Path, name: str) -> None:
    fence = FileFence()
    fence.replace(file, 5, "one", lock="l")
    planted = file.with_name(name)
    planted.unlink()
    os.mkfifo(planted)
    for use in (fence.read, lambda file, token, lock: fence.append(file, token, "more", lock=lock)):
        with pytest.raises((ConfigError, OSError)):
            use(file, 5, lock="l")
