"""Several leaders in one process: the end of one takes nothing from the others."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.servers.process import wait_for

ON_A_LOOP = """
import asyncio
from lockline import aio

async def main():
    async with aio.connect("memory:several") as client:
        async def short(term):
            pass
        async def long(term):
            print("leads", flush=True)
            try:
                await asyncio.sleep(600)
            finally:
                print("ends", flush=True)
                # Longer than the others take: the loop must not end before this one.
                await asyncio.sleep(0.05 * int(term.name))
                print("resigns", flush=True)
        first = asyncio.create_task(client.lead("short", short))
        others = [asyncio.create_task(client.lead(str(number), long)) for number in range(3)]
        await first
        print("one is done", flush=True)
        await asyncio.wait(others)

asyncio.run(main())
"""

IN_THREADS = """
import atexit, threading
import lockline

client, other = lockline.connect("memory:several"), lockline.connect("memory:several")
atexit.register(lambda: print("left:", other.list()))
leads = threading.Event()

def long(term):
    leads.set()
    threading.Event().wait()

threading.Thread(target=client.lead, args=("long", long), daemon=True).start()
leads.wait()
client.lead("short", lambda term: None)
"""


def test_each_leader_of_a_loop_resigns_on_sigterm_also_after_another_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ON_A_LOOP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told: list[str] = []
        wait_for(lambda: told.append(process.stdout.readline().strip()) or len(told) == 4, 60, "leaders")  # type: ignore[func-returns-value,union-attr]
        assert sorted(told) == ["leads", "leads", "leads", "one is done"]
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read().split()
        assert (rest.count("ends"), rest.count("resigns")) == (3, 3)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_a_leader_in_a_thread_resigns_at_exit_also_after_another_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", IN_THREADS], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "left: []\n"
