"""Servers for the tests of the client: `forerun serve` and memcached, whichever is installed.

FORERUN_COMMAND names the `forerun` command; otherwise it is searched in the build directory and on
the PATH.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

KINDS = ("forerun", "memcached")
# Longer than any test waits for a server that answers.
PATIENCE_S = 20


def command(kind):
    """The path of a server's program, or `None`."""
    if kind == "memcached":
        return shutil.which("memcached")
    target = os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[2] / "target")
    places = [os.environ.get("FORERUN_COMMAND")]
    places += [Path(target, profile, "forerun") for profile in ("release", "debug")]
    places.append(shutil.which("forerun"))
    return next((str(place) for place in places if place and Path(place).is_file()), None)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Server:
    """A server on a free port of this machine, or at the port of one that has ended."""

    def __init__(self, kind="forerun", *arguments, port=None):
        path = command(kind)
        if path is None:
            pytest.skip(f"{kind} is not installed")
        self.kind, self.port = kind, port or free_port()
        program = {
            "forerun": [path, "serve", "--port", str(self.port)],
            "memcached": [path, "-u", "root", "-l", "127.0.0.1", "-U", "0", "-p", str(self.port)],
        }[kind]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen([*program, *arguments], stdout=quiet, stderr=quiet)
        end = time.monotonic() + PATIENCE_S
        while not self._accepts():
            assert self.process.poll() is None and time.monotonic() < end, f"{kind} does not start"
            time.sleep(0.01)

    def _accepts(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def started(count, kind="forerun", *arguments):
    """The servers, which are killed at the end."""
    servers = []
    try:
        for _ in range(count):
            servers.append(Server(kind, *arguments))
        yield servers
    finally:
        for server in servers:
            server.kill()


def any_kind():
    """A kind that is installed. Skips the test if there is none."""
    kind = next((kind for kind in KINDS if command(kind)), None)
    return kind or pytest.skip("neither forerun nor memcached is installed")


@contextlib.contextmanager
def silent():
    """The address of a server that accepts connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted = []

    def accept():
        with contextlib.suppress(OSError):
            while True:
                accepted.append(listener.accept()[0])

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in accepted:
            connection.close()
