"""How texts of strangers are shown on a terminal."""

from __future__ import annotations

import pytest

from lockline.cli import text
from lockline.core.claim import Standing


def test_a_long_text_is_cut_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, columns = 0, text.columns

    def counted(some: str) -> int:
        nonlocal looked_at
        looked_at += len(some)
        return columns(some)

    monkeypatch.setattr(text, "columns", counted)
    assert text.cut("ü" * 5000, 80) == "ü" * 80
    assert looked_at < 10_000


@pytest.mark.parametrize(
    ("whole", "most", "rest"),
    [
        ("abc", 2, "ab"),
        ("abc", 3, "abc"),
        ("a\u4e2d\u4e2d", 4, "a\u4e2d"),
        ("u\u0308u\u0308", 1, "u\u0308"),
        ("", 0, ""),
    ],
)
def test_a_text_is_cut_to_the_columns_that_it_takes(whole: str, most: int, rest: str) -> None:
    assert text.cut(whole, most) == rest


def test_a_command_of_any_length_leaves_the_table_readable() -> None:
    claim = Standing(
        id="1-1", owner="web:1", kind="lock", token=1, holds=True, weight=1, capacity=1, ttl=10.0, remaining=5.0,
        enqueued_at=0.0, granted_at=0.0, meta={"command": "x" * 200_000},
    )  # fmt: skip
    shown = text.who(claim)
    assert shown.startswith("web:1 (xxx")
    assert len(shown) < 200
