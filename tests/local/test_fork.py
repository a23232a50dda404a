"""Nothing that SQLite had open crosses a fork: not a lock that only looks held, not a mutex that nobody will release."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ..tier import sample
from .programs import ROOT, run

FLAVOURS = ["sync", "asyncio"]

CLIENT = """
flavour = sys.argv[3]
loop = asyncio.new_event_loop() if flavour == "asyncio" else None

def do(work):
    async def awaited():
        return await work()
    return work() if loop is None else loop.run_until_complete(awaited())

def fresh_loop():
    global loop
    if loop is not None:
        loop = asyncio.new_event_loop()

def connect():
    return lockline.connect(url) if flavour == "sync" else aio.connect(url)

def use(client, name="x"):
    async def once():
        await (await client.lock(name, ttl=600).acquire(timeout=60)).release()
    if loop is None:
        client.lock(name, ttl=600).acquire(timeout=60).release()
    else:
        loop.run_until_complete(once())

def strangers_try(name):
    import subprocess
    program = f"import lockline; c = lockline.connect({url!r}); l = c.lock({name!r}).try_acquire(); print(l and l.token)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
"""


@pytest.mark.parametrize(
    ("flavour", "end"),
    [("sync", "close"), ("asyncio", "exit"), *sample([], [("sync", "exit"), ("asyncio", "close")])],
)
def test_what_a_child_holds_stays_held_when_its_parent_lets_go_of_the_file(
    tmp_path: Path, flavour: str, end: str
) -> None:
    told = run(
        CLIENT
        + """
client = connect()
use(client)
used, parent_gone = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    fresh_loop()
    use(client)
    os.write(used[1], b"1")
    os.close(parent_gone[1])
    os.read(parent_gone[0], 1)
    lease = do(client.lock("job", ttl=600).acquire)
    print(strangers_try("job"), lease.valid, flush=True)
    os._exit(0)
os.read(used[0], 1)
if sys.argv[4] == "exit":
    # Somebody else opens and closes the file as well.
    strangers_try("y")
do(client.close)
if sys.argv[4] == "close":
    os.close(parent_gone[1])
    os.waitpid(child, 0)
""",
        f"local://{tmp_path}/local.db",
        flavour,
        end,
    )
    assert told == "None True"


@pytest.mark.parametrize("flavour", sample(["sync"], FLAVOURS))
def test_a_parent_keeps_what_it_holds_when_children_come_and_go(tmp_path: Path, flavour: str) -> None:
    told = run(
        CLIENT
        + """
client = connect()
lease = do(client.lock("job", ttl=600).acquire)
for _ in range(5):
    child = os.fork()
    if child == 0:
        fresh_loop()
        use(client)
        do(client.close)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
print(strangers_try("job"), lease.valid)
do(lease.release)
print(strangers_try("job") != "None")
""",
        f"local://{tmp_path}/local.db",
        flavour,
    )
    assert told.split() == ["None", "True", "True"]


CHILDREN = sample(10, 20)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_child_forked_while_another_thread_is_in_a_step_can_lock(tmp_path: Path, flavour: str) -> None:
    """In asyncio the loop is in the step, and a thread of its pool forks."""
    told = run(
        CLIENT
        + f"""
clients = [lockline.connect(url), lockline.connect(url)] if flavour == "sync" else []
stop, working = [], set()

def busy(client, name):
    while not stop:
        with client.lock(name):
            working.add(name)

async def busy_loop():
    async with aio.connect(url) as client:
        while not stop:
            async with client.lock("loop"):
                working.add("loop")

threads = [threading.Thread(target=busy, args=(client, f"n{{k}}"), daemon=True) for client in clients for k in range(2)]
if flavour == "asyncio":
    threads.append(threading.Thread(target=lambda: asyncio.run(busy_loop()), daemon=True))
for thread in threads:
    thread.start()
while len(working) < (2 if clients else 1):
    time.sleep(0.001)
good = 0
for number in range({CHILDREN}):
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        code = 1
        try:
            for client in [*clients, lockline.connect(url)]:
                with client.lock(f"child-{{number}}").acquire(timeout=50):
                    pass
            code = 0
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(code)
    _, status = os.waitpid(child, 0)
    good += status == 0
    if number - good > 2:
        break
    time.sleep(random.uniform(0, 0.003))
stop.append(1)
for thread in threads:
    thread.join(60)
print(good)
""",
        f"local://{tmp_path}/local.db",
        flavour,
        seconds=200,
    )
    assert int(told.split()[-1]) == CHILDREN, told


@pytest.mark.slow
def test_a_child_can_lock_wherever_another_thread_was_cut_short(tmp_path: Path) -> None:
    """A thread that an exception struck in the middle of a step is in no step any more: the fork need not wait for it."""
    told = run(
        CLIENT
        + """
sys.path.insert(0, sys.argv[4])
from tests.cutting import Cut, CutAt
client = connect()
use(client)
from lockline.backends.local import connection
connection.FORK_PATIENCE = 300.0  # a fork that waits for the thread would not come back in the time of this program
struck = 0

def work(cut):
    try:
        cut(lambda: client.lock("x", ttl=600).acquire(timeout=60).release())
    except Cut:
        pass

for nth in range(1, 100_000, int(sys.argv[5])):
    cut = CutAt(nth, "opcode", "/backends/local/connection")
    thread = threading.Thread(target=work, args=(cut,))
    thread.start()
    thread.join()
    if not cut.where:
        break
    struck += 1
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        code = 1
        try:
            client.lock("child").acquire(timeout=60).release()
            code = 0
        except BaseException as error:
            print(repr(error), cut.where, flush=True)
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, cut.where
    use(client, "y")
print(struck)
""",
        f"local://{tmp_path}/local.db",
        "sync",
        str(ROOT),
        sample("15", "5"),
        seconds=200,
    )
    assert int(told.split("\n")[-1]) > sample(7, 20)


def test_a_grandchild_can_lock_too(tmp_path: Path) -> None:
    told = run(
        CLIENT
        + """
client = connect()
use(client)
def descend(depth):
    if depth == 0:
        print(client.lock("deep").try_acquire() is not None, flush=True)
        os._exit(0)
    child = os.fork()
    if child == 0:
        use(client)
        descend(depth - 1)
    _, status = os.waitpid(child, 0)
    use(client)
    if depth < 3:
        os._exit(status >> 8)
descend(3)
""",
        f"local://{tmp_path}/local.db",
        "sync",
    )
    assert told == "True"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become a user who may not fork")
def test_a_fork_that_the_system_refuses_leaves_the_parent_as_it_was(public: Path) -> None:
    told = run(
        CLIENT
        + """
import resource, lockline.backends.local
os.setuid(65534)
client = connect()
lease = client.lock("job", ttl=600).acquire()
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    os.fork()
except BlockingIOError:
    print("refused")
print(lease.valid, client.inspect("job").holders[0].id == lease.id)
lease.release()
use(client)
os._exit(sys.stdout.flush() or 0)
""",
        f"local://{public}/local.db",
        "sync",
    )
    assert told.split() == ["refused", "True", "True"]


def test_a_child_says_so_when_it_was_forked_behind_pythons_back(tmp_path: Path) -> None:
    """A fork in C runs none of Python's hooks: what SQLite has open crosses it, and must not be used there."""
    told = run(
        CLIENT
        + """
import ctypes, json
libc = ctypes.PyDLL(None)
client = connect()
lease = client.lock("job", ttl=600).acquire()
child = libc.fork()
if child == 0:
    seen = []
    for one in (client, lockline.connect(url)):
        try:
            one.lock("other").acquire(timeout=0.5)
            seen.append("locked")
        except lockline.BackendUnavailable as refused:
            seen.append("forked" in str(refused))
    print(json.dumps(seen), flush=True)
    os._exit(0)
os.waitpid(child, 0)
lease.release()
use(client)
""",
        f"local://{tmp_path}/local.db",
        "sync",
    )
    assert json.loads(told) == [True, True]
