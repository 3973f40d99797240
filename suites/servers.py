"""Servers for the suites: started from a command line on a free port, waited for, and ended by
their process number."""

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def is_memcached(command):
    return os.path.basename(command[0]).startswith("memcached")


def is_redis(command):
    return os.path.basename(command[0]).startswith(("redis", "valkey"))


class Server:
    """A server that runs from `with` to its end. `command` takes memcached's long options."""

    def __init__(self, command, *options, memory_mib=64, threads=2):
        self.command = list(command)
        self.options = list(options)
        self.memory_mib = memory_mib
        self.threads = threads

    def line(self):
        """The command with its options, for a port that is chosen here."""
        self.port = free_port()
        line = self.command + [
            "--listen", "127.0.0.1",
            "--port", str(self.port),
            "--threads", str(self.threads),
            "--memory-limit", str(self.memory_mib),
            *self.options,
        ]
        if is_memcached(self.command) and os.geteuid() == 0:
            line += ["--user", "root"]
        return line

    def __enter__(self):
        line = self.line()
        self.said = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said
        )
        try:
            self.await_listening(shlex.join(line))
        except BaseException:
            self.end()
            raise
        return self

    def await_listening(self, line):
        for _ in range(200):
            if self.process.poll() is not None:
                self.said.seek(0)
                words = self.said.read().decode(errors="replace").strip()
                raise SystemExit(
                    f"the server ended with {self.process.returncode}: {line}\n{words}"
                )
            try:
                self.connect().close()
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"the server does not listen: {line}")

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), 1)

    def check(self):
        """Fails if the server has ended by itself."""
        if self.process.poll() is not None:
            raise SystemExit(
                f"the server ended in the middle of a suite, with {self.process.returncode}"
            )

    def end(self):
        if self.said.closed:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()

    def __exit__(self, *_):
        self.end()


class RespServer(Server):
    """A server that speaks RESP on `port`. `command` is Redis or Valkey, or takes memcached's long
    options and --resp."""

    def __init__(self, command, *options, port=None, databases=1, **resources):
        super().__init__(command, *options, **resources)
        self.wanted_port = port
        self.databases = databases

    def line(self):
        resp = self.wanted_port or free_port()
        if is_redis(self.command):
            line = self.command + [
                "--bind", "127.0.0.1",
                "--port", str(resp),
                "--save", "",
                "--appendonly", "no",
                "--dir", tempfile.gettempdir(),
                "--databases", str(self.databases),
                *self.options,
            ]
        else:
            line = super().line() + [
                "--resp", f"127.0.0.1:{resp}",
                "--resp-databases", str(self.databases),
            ]
        self.port = resp
        return line
