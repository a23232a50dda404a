"""A Redis whose failover forgets breaks exclusion, as its page says; the fence holds all the same."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from lockline.lab.verify import machine as machines
from lockline.lab.verify.history import History
from lockline.lab.verify.judge import Rules, judge
from lockline.lab.verify.machine import Machine, RunWish
from lockline.lab.verify.proxy import FaultProxy
from lockline.lab.verify.verdict import BROKEN, EXCLUSION, FENCE, HELD, RISING, UNIQUE, RunVerdict
from tests.servers.redis import a_redis

pytestmark = [pytest.mark.server, pytest.mark.slow]


GRANTS = 200


def test_exclusion_is_broken_and_the_fence_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(whole: History, rules: Rules) -> RunVerdict:
        """The run ends when exclusion is broken, and not before there was enough for the fence to do."""
        found = judge(whole, rules)
        return found if found.grants >= GRANTS else RunVerdict()

    monkeypatch.setattr(machines, "judge", judged)
    wish: dict[str, Any] = {
        "seconds": 120.0,
        "until_broken": True,
        "workers": 3,
        "seed": 5,
        "strikes": False,
        "least": 20,
    }
    with a_redis() as one, a_redis() as other, FaultProxy("127.0.0.1", one.port) as address:
        machine = Machine(RunWish(f"redis://127.0.0.1:{address.port}", **wish))

        def fail_over() -> None:
            """The one that takes over has not heard of anything since it last was in charge."""
            servers = [one, other]
            machine.working.wait(120)
            while machine.working.is_set():
                time.sleep(0.6)
                servers.reverse()
                fault = machine.begin("failover")
                address.move("127.0.0.1", servers[0].port)
                machine.end(fault, 3.0)

        thread = threading.Thread(target=fail_over)
        thread.start()
        outcome = machine.run()
        thread.join()
    states = {promise: outcome.verdict.of(promise) for promise in (EXCLUSION, FENCE, UNIQUE, RISING)}
    assert states[EXCLUSION].state == BROKEN
    assert states[FENCE].state == HELD, states[FENCE].text
    assert states[UNIQUE].state == HELD, states[UNIQUE].text
    assert states[RISING].state == HELD, states[RISING].text
    assert outcome.verdict.code == 1
