"""The workers, seen from the one who starts them: begun, struck, replaced, and ended by their own numbers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import IO

from ...runtime.clock import now
from .plan import Settings

STANDS_STILL_WITHIN = 2.0
"""So long a worker is waited for that was told to stop, or to die, at its next hold."""


@dataclass(slots=True)
class CrewWorker:
    """One process."""

    number: int
    process: subprocess.Popen[str]

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def tell(self, order: str) -> None:
        """One line."""
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):
            stdin.write(order + "\n")
            stdin.flush()

    def send(self, number: signal.Signals) -> None:
        """A signal, if it is still there."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def stopped(self) -> bool:
        """Whether it stands still."""
        try:
            found = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except (ChildProcessError, AttributeError):
            return False
        return found is not None


class Crew:
    """All workers of a run; every other one is asyncio."""

    def __init__(self, settings: Settings, size: int) -> None:
        self._settings = settings
        self._next = 0
        self._mutex = threading.Lock()
        self.workers: list[CrewWorker] = []
        self.replaced = 0
        for _ in range(size):
            self.add()

    def add(self) -> CrewWorker:
        """One more."""
        with self._mutex:
            number = self._next
            self._next += 1
        settings = replace(self._settings, number=number, flavour="asyncio" if number % 2 else "sync")
        with open(os.path.join(settings.folder, f"worker-{number}.err"), "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "lockline.lab.verify.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
                # Ctrl-C is for us: we end them in good order.
                start_new_session=True,
            )
        worker = CrewWorker(number, process)
        worker.tell(settings.text())
        self.workers.append(worker)
        return worker

    def well(self) -> list[CrewWorker]:
        """Those that can be struck."""
        return [worker for worker in self.workers if worker.alive]

    def replace(self, worker: CrewWorker) -> None:
        """Another one in the place of one that has ended."""
        self.replaced += 1
        worker.process.wait()
        self.workers.remove(worker)
        self._close(worker)
        self.add()

    @staticmethod
    def wait_stopped(worker: CrewWorker, within: float = STANDS_STILL_WITHIN) -> bool:
        """Whether it stands still, or has died, by then."""
        until = now() + within
        while now() < until:
            if worker.stopped() or not worker.alive:
                return True
            time.sleep(0.005)
        return False

    def stop(self, within: float, unwanted: threading.Event) -> list[int]:
        """Let all finish; the numbers of those that did not and had to be killed. Whoever wants no more of it need not wait."""
        for worker in self.workers:
            worker.send(signal.SIGCONT)
            worker.tell("stop")
        until = now() + within
        while self.well() and now() < until and not unwanted.wait(0.02):
            pass
        late = [worker.number for worker in self.well()]
        self.kill()
        return late

    def kill(self) -> None:
        """End all that are left, now."""
        for worker in self.workers:
            worker.send(signal.SIGKILL)
        for worker in self.workers:
            worker.process.wait()
            self._close(worker)

    @staticmethod
    def _close(worker: CrewWorker) -> None:
        with contextlib.suppress(OSError, ValueError):
            assert worker.process.stdin is not None
            worker.process.stdin.close()

    def failures(self) -> dict[int, int]:
        """The exit codes of workers that ended by themselves and not well: number and code."""
        return {
            worker.number: worker.process.returncode
            for worker in self.workers
            if worker.process.returncode not in (0, None, -signal.SIGKILL)
        }
