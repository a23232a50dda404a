"""Every order of requests that three holders of one object can make, by lot: what S3Fence promises holds in all of them.

The store is a model of S3 with its two conditions, because a real one cannot be told in which order to serve.
"""

from __future__ import annotations

import hashlib
import io
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lockline import LocklineError, StaleToken
from lockline.fence import ReadAgain, S3Fence
from lockline.fence.s3.marks import S3Marks

from ..tier import sample

SEEDS = sample(50, 150)
KEY = "log"


class Turns:
    """Lets one request through at a time, drawn by lot among those that wait."""

    def __init__(self, seed: int, many: int) -> None:
        self._lot = random.Random(seed)
        self._change = threading.Condition()
        self._waiting: list[int] = []
        self._alive = many
        self._chosen: int | None = None
        self.now = 0

    def take(self) -> None:
        me = threading.get_ident()
        with self._change:
            self._waiting.append(me)
            self._choose()
            assert self._change.wait_for(lambda: self._chosen == me, 60)
            self._chosen = None
            self.now += 1

    def end(self) -> None:
        with self._change:
            self._alive -= 1
            self._choose()

    def _choose(self) -> None:
        if self._chosen is None and self._waiting and len(self._waiting) == self._alive:
            self._chosen = self._waiting.pop(self._lot.randrange(len(self._waiting)))
            self._change.notify_all()


class Model:
    """The four requests that the fence makes, each at one instant."""

    def __init__(self, turns: Turns, *, careless: str = "") -> None:
        self._turns = turns
        self._careless = careless
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.marks: list[bytes] = []

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, Metadata: Any = None, **options: Any) -> Any:
        self._turns.take()
        there = self.objects.get(Key)
        if not (self._careless and Key.startswith(self._careless)) and (
            ("IfNoneMatch" in options and there is not None)
            or ("IfMatch" in options and (there is None or options["IfMatch"] != etag(there[0])))
        ):
            raise refused(412)
        self.objects[Key] = (Body, Metadata or {})
        if Key != KEY:
            self.marks.append(Body)
        return {"ETag": etag(Body)}

    def get_object(self, *, Bucket: str, Key: str) -> Any:
        body, metadata = self._there(Key)
        return {"Body": io.BytesIO(body), "ETag": etag(body), "Metadata": metadata}

    def head_object(self, *, Bucket: str, Key: str) -> Any:
        body, metadata = self._there(Key)
        return {"ETag": etag(body), "Metadata": metadata}

    def _there(self, key: str) -> tuple[bytes, dict[str, str]]:
        self._turns.take()
        if key not in self.objects:
            raise refused(404)
        return self.objects[key]


def etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def refused(status: int) -> ClientError:
    return ClientError({"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}, "x")


def played(seed: int, careless: str = "") -> list[str]:
    """One schedule; what it broke."""
    turns = Turns(seed, 3)
    model = Model(turns, careless=careless)
    fence = S3Fence(model, "bucket")
    if seed % 2:
        model.objects[KEY] = (b"", {})
    entered: dict[int, int] = {}
    accepted: list[tuple[int, int, bytes]] = []
    problems: list[BaseException] = []

    def hold(token: int) -> None:
        try:
            for number in range(3):
                entry = fence.enter(KEY, token)
                entered.setdefault(token, turns.now)
                piece, began = b"%d.%d;" % (token, number), turns.now
                try:
                    entry.put((entry.body or b"") + piece)
                except ReadAgain:
                    continue
                accepted.append((token, began, piece))
        except StaleToken:
            pass
        except BaseException as problem:
            problems.append(problem)
        finally:
            turns.end()

    threads = [threading.Thread(target=hold, args=(token,)) for token in (5, 6, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    broken = [f"{problem!r}" for problem in problems if not isinstance(problem, LocklineError)]
    text = model.objects.get(KEY, (b"", {}))[0]
    order = [int(piece.split(b".")[0]) for piece in text.split(b";")[:-1]]
    broken += [f"the accepted {piece!r} is gone" for _, _, piece in accepted if piece not in text]
    if order != sorted(order):
        broken.append(f"written out of order: {order}")
    tokens = [int(mark.split(b"[")[1].split(b",")[0]) for mark in model.marks]
    if tokens != sorted(tokens):
        broken.append(f"the mark went back: {tokens}")
    for token, began, piece in accepted:
        if any(other > token and since < began for other, since in entered.items()):
            broken.append(f"{piece!r} began after a newer one had entered, and was accepted")
    return broken


def test_the_promises_hold_in_every_order_of_requests() -> None:
    for seed in range(SEEDS):
        assert played(seed) == [], f"seed {seed}"


def _only_what_is_there(self: S3Marks, key: str, offer: Any, enter: Callable[..., None] = S3Marks.enter) -> None:
    if self._bucket.head(key) is not None:  # an object that is not there carries no mark
        enter(self, key, offer)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("marks without a condition", "the mark went back"),
        ("objects without a condition", "is gone"),
        ("no mark before there is an object", "began after a newer one had entered"),
        ("no mark at all", "began after a newer one had entered"),
    ],
)
def test_each_fault_is_found(fault: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    careless = {"marks without a condition": "lockline-fence/", "objects without a condition": KEY}.get(fault, "")
    if fault.startswith("no mark before"):
        monkeypatch.setattr(S3Marks, "enter", _only_what_is_there)
    elif fault.startswith("no mark"):
        monkeypatch.setattr(S3Marks, "enter", lambda self, key, offer: None)
    broken = (text for seed in range(150) for text in played(seed, careless))
    assert any(found in text for text in broken)
