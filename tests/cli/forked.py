"""Real processes without the start of Python: one process has imported everything, and forks for each call.

A start of `lockline` costs 0.25 s of a processor, nearly all of it imports. A fork of a process that has them costs 0.02 s. The child has
its own pid, files, environment, folder and signals as if it had been started, and ends as the interpreter ends. It is a child of the
process that forks, in the process group of the tests.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]
LARGEST = 1 << 17

PROGRAM = """\
#!{python} -IS
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect({address!r})
status, told = os.pipe()
request = {{"argv": sys.argv[1:], "env": dict(os.environ), "folder": os.getcwd(), "call": {call!r}, "terminal": False, "imports": []}}
socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2, told])
os.close(told)
code = int(os.read(status, 100))
sys.exit(code if code >= 0 else 128 - code)
"""
"""A program that lets the forker do its work. That is done in the process group of the tests, and not in the program's own."""


class Forked:
    """A process that the forker made; the part of `subprocess.Popen[str]` that the tests use."""

    def __init__(self, pid: int, status: int, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.pid = pid
        self._status = status
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int = None  # type: ignore[assignment]  # as in the types of Popen

    def poll(self) -> int | None:
        """The exit code, -n for signal n; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that is still to be read, and the end of the process."""
        texts = ["", ""]

        def read(number: int, stream: TextIO) -> None:
            texts[number] = stream.read()
            stream.close()

        readers = [
            threading.Thread(target=read, args=(number, stream), daemon=True)
            for number, stream in enumerate((self.stdout, self.stderr))
            if stream is not None and not stream.closed
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(timeout)
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            told = os.read(self._status, 100)
            os.close(self._status)
            assert told, "the process that forks has ended"
            self.returncode = int(told)
        return self.returncode


class Forker:
    """The process that forks, from the side of the tests. It begins with the first call."""

    def __init__(self, *imports: str) -> None:
        """Before the first fork it has imported these modules, or called what is named as `module:function`."""
        self._imports = imports
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._address = f"\0lockline-forker-{uuid.uuid4()}"

    def program(self, path: Path, call: str) -> Path:
        """Make a program for shell scripts that calls this; for those that are not about signals and process groups."""
        with self._guard:
            self._connected()
        path.parent.mkdir(exist_ok=True)
        path.write_text(PROGRAM.format(python=sys.executable, address=self._address, call=call))
        path.chmod(0o755)
        return path

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        *,
        call: str | None,
        files: tuple[int, int, int],
        terminal: bool = False,
        imports: Sequence[str] = (),
    ) -> Forked:
        """Call `module:function` in a new process with these arguments; without one, run the program argv[0].

        With `terminal`, stdin becomes the controlling terminal of a new session.
        """
        request = {
            "argv": list(argv), "env": dict(env), "folder": str(folder), "call": call, "terminal": terminal, "imports": list(imports),
        }  # fmt: skip
        status, told = os.pipe()
        try:
            with self._guard:
                line = self._connected()
                socket.send_fds(line, [json.dumps(request).encode()], [*files, told])
                answer = line.recv(100)
        finally:
            os.close(told)
        assert answer, "the process that forks has ended"
        return Forked(int(answer), status)

    def _connected(self) -> socket.socket:
        if self._line is None:
            self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
                door.bind(self._address)
                door.listen()
                files = (theirs.fileno(), door.fileno())
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, *map(str, files), *self._imports],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    pass_fds=files,
                )
        return self._line

    def close(self) -> None:
        if self._line is not None and self._process is not None:
            self._line.close()
            self._process.wait(60)
            self._line = self._process = None


def piped(forker: Forker, argv: Sequence[str], env: Mapping[str, str], folder: Path, *, call: str) -> Forked:
    """Nothing to read for it, and pipes for what it says."""
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    with open(os.devnull) as nothing:
        try:
            made = forker.start(argv, env, folder, call=call, files=(nothing.fileno(), out_end, err_end))
        finally:
            os.close(out_end)
            os.close(err_end)
    made.stdout, made.stderr = open(out), open(err)  # noqa: SIM115
    return made


# -- the process that forks ------------------------------------------------------------------------


def serve(line: socket.socket, door: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each request; returns in each child with what that has to become, and in the parent at the end."""
    running: dict[int, tuple[int, int]] = {}
    guests: set[socket.socket] = set()
    while True:
        watched: list[Any] = [line, door, *guests, *running]
        for ready in select.select(watched, [], [])[0]:
            if ready is door:
                guests.add(door.accept()[0])
                continue
            if isinstance(ready, int):
                pid, told = running.pop(ready)
                os.close(ready)
                _, status = os.waitpid(pid, 0)
                try:
                    os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
                except BrokenPipeError:  # the test does not want to know
                    pass
                os.close(told)
                continue
            text, files, _, _ = socket.recv_fds(ready, LARGEST, 4)
            if not text and ready in guests:
                guests.remove(ready)
                ready.close()
                continue
            if not text:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            request = json.loads(text)
            prepare(request["imports"])
            assert threading.active_count() == 1
            pid = os.fork()
            if pid == 0:
                return request, files
            running[os.pidfd_open(pid)] = (pid, files.pop())
            for file in files:
                os.close(file)
            if ready is line:
                line.send(str(pid).encode())


_prepared: set[str] = set()


def prepare(names: Sequence[str]) -> None:
    """Import these modules, and call what is named as `module:function`; each once."""
    for name in names:
        if name not in _prepared:
            _prepared.add(name)
            module, _, function = name.partition(":")
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()


def become(request: dict[str, Any], files: list[int]) -> None:
    """Be the process that was asked for, as if it had been started."""
    for number in range(3):
        os.dup2(files[number], number)
    os.closerange(3, 4096)
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    argv: list[str] = request["argv"]
    if request["call"] is None:
        os.execvpe(argv[0], argv, os.environ)
    module, _, function = request["call"].partition(":")
    sys.argv = [module, *argv]
    # What `lockline lead` becomes anew.
    sys.orig_argv = [sys.executable, "-m", module.removesuffix(".__main__"), *argv]
    sys.stdin, sys.stdout, sys.stderr = (_stream(number, mode) for number, mode in enumerate("rww"))
    getattr(importlib.import_module(module), function)()


def _stream(number: int, mode: str) -> Any:
    """As the interpreter opens it."""
    return open(
        number, mode, buffering=1 if number == 2 or os.isatty(number) else -1, errors="backslashreplace" if number == 2 else None, closefd=False,
    )  # fmt: skip


def main() -> None:
    line, door = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    # As on a terminal, also where the tests run in the background of a shell or under nohup, which ignore these.
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    prepare(sys.argv[3:])
    gc.collect()
    gc.freeze()
    asked = serve(line, door)
    if asked is not None:
        for ours in (line, door):
            os.close(ours.detach())
        code = 0
        try:
            become(*asked)
        except SystemExit as ended:
            if not isinstance(ended.code, int):
                raise
            code = ended.code
        end(code)


def end(code: int) -> None:
    """End as the interpreter does, without taking each module apart: that touches every page of memory that the fork shares."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # the interpreter has its own way then
    os._exit(code)


if __name__ == "__main__":
    main()
