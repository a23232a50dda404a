"""An exception that a signal handler raises gets out, although Python drops it inside a finalizer.

Inside `__del__`, a callback of a weak reference or the garbage collector, Python prints an exception and goes on. A signal that arrives
there would be lost, and the process would wait on. So the drop is noticed, and the signal is sent once more, a moment later.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

AGAIN_AFTER_S: Final = 0.05


def insist(number: int, ours: type[BaseException], arm: Callable[[], object]) -> Callable[[], None]:
    """Send the signal again whenever an exception of this type was dropped, after `arm`; returns what ends that."""
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if not isinstance(dropped.exc_value, ours):
            before(dropped)
            return
        arm()
        # The plain call, without a lock: the code that the finalizer interrupted may hold any lock of `threading`.
        _thread.start_new_thread(send, (getattr(dropped.exc_value, "number", number),))

    def send(again: int) -> None:
        time.sleep(AGAIN_AFTER_S)
        os.kill(os.getpid(), again)

    def end() -> None:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before

    sys.unraisablehook = hook
    return end
