"""Threads at the way in: whoever lets in may stand still between any two instructions while the others go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lockline.core import entrance as entrance_module
from lockline.core.claim import Claim
from lockline.core.entrance import Entrance
from lockline.core.live import LiveClaim
from lockline.core.waiting import Hints
from lockline.runtime.blocking import BlockingRuntime, run

from ..servers.process import wait_for
from ..standstill import EachInstruction
from .nobody import NOBODY

RUNTIME = BlockingRuntime()


class Asks(LiveClaim):
    """A claim whose call goes on after the store has answered: it waits for its turn."""

    def __init__(self, claim_id: str) -> None:
        claim = Claim(claim_id, claim_id, "me", "lock", 1, 1, 60.0, 0.0, "")
        super().__init__(claim, RUNTIME, (None, claim_id), True, None, NOBODY)

    def under_way(self) -> bool:
        return True


def test_one_who_has_its_answer_takes_nobodys_place_whatever_thread_let_it_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance_module, "LOOK_AGAIN", 0.02)
    instructions = EachInstruction("core/entrance.py", 40)
    for nth in instructions:
        entrance = Entrance(1, Hints(RUNTIME, None, lambda: None), "store:")
        first, second = Asks("first"), Asks("second")
        run(entrance.come_in(first, RUNTIME.now(), None, None))

        def come(entrance: Entrance = entrance, second: Any = second) -> None:
            run(entrance.come_in(second, RUNTIME.now(), None, None))
            entrance.answered(second)

        comes = threading.Thread(target=come, daemon=True)
        comes.start()
        wait_for(lambda: entrance._line, 60, "one outside")  # noqa: B023 - waited for here
        leaves = instructions.stand_still(lambda: entrance.answered(first), nth)  # noqa: B023 - done in this round
        entrance._let_in()
        if second.claim.id in entrance._inside or second.asked:
            comes.join(20)
        leaves.go_on()
        comes.join(20)
        assert not comes.is_alive(), nth
        assert not entrance._inside, nth
        assert not entrance._line, nth
