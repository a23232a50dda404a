"""A signal handler or a finalizer calls Lockline in the middle of a call of its own thread: both come to their end.

What interrupts is put before every line, or every tenth instruction, of the code below: a real signal or garbage collection would hit one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..tier import sample
from .programs import run

INTERRUPTED = """
import dis, functools, itertools
unit, inside, stride = sys.argv[3], sys.argv[4], int(sys.argv[5])

@functools.cache
def first(code):
    return next((step.offset for step in dis.get_instructions(code) if step.opname == "RESUME"), -1)

class At:
    '''Runs something, and something else before the nth step of the code under test.'''

    def __init__(self, nth, act):
        self.left, self.act, self.struck = nth, act, False

    def __call__(self, work):
        # Python 3.12 traces instructions only if a frame asked for it before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self.trace)
        try:
            return work()
        finally:
            sys.settrace(None)

    def trace(self, frame, event, arg):
        if inside not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = unit == "opcode", unit == "line"
        return self.look

    def look(self, frame, event, arg):
        # Before the first real instruction of a function no interpreter looks for signals, and tracing is not sound there.
        if event == unit and frame.f_lasti > first(frame.f_code):
            self.left -= 1
            if self.left == 0:
                self.struck = True
                # Untraced, as all that a trace function calls. To end tracing from in here crashes CPython 3.11 at times.
                self.act()
        return self.look

def everywhere(story):
    '''Tell the story once for each place that it can be interrupted at; how many there were.'''
    for nth in itertools.count(1, stride):
        if not story(nth):
            return nth // stride
"""


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "memory":
        return ["memory:reentry", "opcode", "/backends/memory", sample("9", "3")]
    return [f"local://{tmp_path}/local.db", "opcode", "/backends/local/", sample("21", "7")]


@pytest.mark.slow
def test_a_finalizer_that_releases_a_lease_while_its_thread_acquires_and_releases(store: list[str]) -> None:
    told = run(
        INTERRUPTED
        + """
client, other = lockline.connect(url), lockline.connect(url)
tokens = [0]

def story(nth):
    for owner in (client, other):
        held = owner.lock("held", ttl=600).acquire()
        at = At(nth, held.release)
        def pair():
            with client.lock("mine", ttl=600) as lease:
                assert lease.token > tokens[-1]
                tokens.append(lease.token)
        at(pair)
        if not at.struck:
            held.release()
    assert client.list() == [], client.list()
    return at.struck

print(everywhere(story))
""",
        *store,
        seconds=200,
    )
    assert int(told) > sample(7, 20)


@pytest.mark.slow
def test_a_signal_handler_that_locks_while_its_thread_acquires_and_releases(store: list[str]) -> None:
    told = run(
        INTERRUPTED
        + """
client = lockline.connect(url)
seen = []

def handler():
    with client.lock("log", ttl=600).acquire(timeout=60) as lease:
        seen.append(lease.token)

def story(nth):
    at = At(nth, handler)
    def pair():
        with client.lock("mine", ttl=600).acquire(timeout=60) as lease:
            seen.append(lease.token)
    at(pair)
    assert len(set(seen)) == len(seen), "two grants with one token"
    assert client.list() == []
    return at.struck

print(everywhere(story))
""",
        *store,
        seconds=200,
    )
    assert int(told) > sample(7, 20)


@pytest.mark.slow
def test_a_signal_handler_that_closes_the_client_while_its_thread_uses_it(store: list[str]) -> None:
    """The call below ends, well or with ClientClosed, and nothing of the client is left in the store."""
    told = run(
        INTERRUPTED
        + """
witness = lockline.connect(url)
stride *= 2 if url.startswith('local') else 5

def story(nth):
    client = lockline.connect(url)
    client.lock("warm").acquire().release()
    held = client.lock("held", ttl=600).acquire() if nth // stride % 2 else None
    at = At(nth, client.close)
    def pair():
        client.lock("mine", ttl=600).acquire().release()
    try:
        at(pair)
    except (lockline.BackendUnavailable, lockline.LeaseLost, lockline.NotHeld):
        pass
    client.close()
    until = time.monotonic() + 60
    while witness.list() and time.monotonic() < until:
        time.sleep(0.001)
    assert witness.list() == [], (witness.list(), nth)
    return at.struck

print(everywhere(story))
""",
        *store,
        seconds=200,
    )
    assert int(told) > 2


@pytest.mark.parametrize("url", ["memory:alarms", "local"])
def test_an_alarm_that_closes_the_client_ends_a_busy_loop(tmp_path: Path, url: str) -> None:
    told = run(
        """
ended = 0
for attempt in range(12):
    client = lockline.connect(url)
    signal.signal(signal.SIGALRM, lambda *_: client.close())
    client.lock("x").acquire().release()
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.01))
    try:
        while True:
            with client.lock("x"):
                pass
    except lockline.LocklineError:
        ended += 1
print(ended, lockline.connect(url).list())
""",
        url if url != "local" else f"local://{tmp_path}/local.db",
    )
    assert told == "12 []"


@pytest.mark.parametrize("url", ["memory:garbage", "local"])
def test_garbage_that_releases_a_lease_does_not_wait_for_its_own_thread(tmp_path: Path, url: str) -> None:
    told = run(
        """
leases = {}

class Job:
    def __init__(self, client, number):
        leases[number] = client.lock(f"job-{number}").acquire(timeout=60)
        self.number, self.me = number, self

    def __del__(self):
        leases.pop(self.number).release()

gc.set_threshold(20, 2, 2)
client = lockline.connect(url)
for number in range(500):
    Job(client, number)
until = time.monotonic() + 60
while client.list() and time.monotonic() < until:
    gc.collect()
print(client.list())
""",
        url if url != "local" else f"local://{tmp_path}/local.db",
    )
    assert told == "[]"
