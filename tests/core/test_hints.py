"""What is heard of a claim reaches whoever has to look, however its coming and the claim's own steps fall together."""

from __future__ import annotations

from lockline.core.waiting import Hints
from lockline.runtime.blocking import BlockingRuntime


def test_a_push_that_finds_a_claim_waiting_which_then_holds_is_the_keepers() -> None:
    """The thread that hears it is stopped after its look at the claim, and that one has its turn meanwhile."""
    waits = True

    def will_wait(claim_id: str) -> bool:
        nonlocal waits
        found, waits = waits, False
        if found:
            hints.pass_on(claim_id)  # by the one that holds from now on: nothing was heard so far
        return found

    rings: list[None] = []
    hints = Hints(BlockingRuntime(), None, lambda: rings.append(None), will_wait)
    hints.heard("a")
    assert hints.take(["a"]) == ["a"]
    assert rings
    assert not hints.early


def test_a_push_for_one_that_is_about_to_wait_lies_there_when_it_does() -> None:
    hints = Hints(BlockingRuntime(), None, lambda: None)
    hints.heard("a")
    hints.expect("a")
    assert not hints.early
    hints.stop_expecting("a")
    assert hints.take(["a"]) == ["a"], "nobody has looked since"
