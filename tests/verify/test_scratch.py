"""The folder of a run goes with it; one that was left by a run that was killed goes with the next."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from lockline.lab.verify.scratch import PREFIX, YOUNG, a_folder


def test_what_was_left_is_swept_up_and_what_is_in_use_or_not_ours_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, fresh, elsewhere = (tmp_path / f"{PREFIX}{word}" for word in ("left", "fresh", "link"))
    precious = tmp_path / "precious"
    for folder in (left, fresh, precious):
        folder.mkdir()
        (folder / "history-0.log").write_text("x")
    elsewhere.symlink_to(precious)
    with a_folder() as used:
        for folder in (left, used, precious):
            long_ago = os.stat(folder).st_mtime - 2 * YOUNG
            os.utime(folder, (long_ago, long_ago))
        with a_folder():
            assert not left.exists()
            assert used.exists()
            assert fresh.exists()
    assert not used.exists()
    assert (precious / "history-0.log").exists()
