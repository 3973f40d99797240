"""The TCP port of a shard. A peer that does not keep to the protocol loses its connection, and
costs nothing else.

    accept ──> a thread for each connection: hello ──> request, answer, request, answer ...

Limits: `connections_max` connections, of which `hellos_max` may be without a valid hello; a hello
within `HELLO_S` seconds; a frame within twice `FRAME_S` seconds of its first byte; an answer taken
within `FRAME_S` seconds. The length of a frame is checked before memory is taken for it, and the
memory is returned after `FRAME_S` seconds of silence.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import struct
import threading
import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.ray import frames
from forerun.ray.frames import FrameError, Request

HELLO_S = 5.0
FRAME_S = 30.0
# Two for each process of 64 hosts with 8 processes. A connection has a thread.
CONNECTIONS_MAX = 1024
HELLOS_MAX = 32

log = logging.getLogger("forerun.ray")

Buffer = NDArray[np.uint8]


class Session(Protocol):
    """What a shard keeps for a connection."""

    def serve(self, request: Request, body: Buffer) -> Buffer:
        """The answer, head included. It may be reused by the next call."""

    def release(self) -> None:
        """Returns the memory of the last answer."""

    def close(self) -> None: ...


class Shard(Protocol):
    row_bytes: int

    def session(self) -> Session: ...


_TIMEVAL = struct.Struct("@ll")


def set_timeout(connection: socket.socket, option: int, seconds: float) -> None:
    """A time-out in the kernel. With one of Python's, every call would poll first, and a long
    answer would take a call for each part that fits into the socket's buffer."""
    micros = max(int(seconds * 1e6), 1)
    connection.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*divmod(micros, 1_000_000)))


def receive(connection: socket.socket, into: memoryview, deadline: float) -> bool:
    """Fills a buffer. Returns false if the peer has closed before its first byte."""
    got = 0
    while got < len(into):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no bytes came in time")
        set_timeout(connection, socket.SO_RCVTIMEO, left)
        try:
            count = connection.recv_into(into[got:], 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError("no bytes came in time") from None
        if count == 0:
            if got == 0:
                return False
            raise FrameError("the peer has closed in the middle of a frame")
        got += count
    return True


def send(connection: socket.socket, data: memoryview, deadline: float) -> None:
    """Sends all bytes before a deadline."""
    while len(data) > 0:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the peer did not take all bytes in time")
        set_timeout(connection, socket.SO_SNDTIMEO, left)
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            raise TimeoutError("the peer did not take all bytes in time") from None


class DataPort:
    def __init__(
        self,
        shard: Shard,
        bind: str,
        connections_max: int = CONNECTIONS_MAX,
        hellos_max: int = HELLOS_MAX,
    ) -> None:
        self.token = secrets.token_bytes(frames.TOKEN_BYTES)
        self._shard = shard
        self._connections_max = connections_max
        self._hellos_max = hellos_max
        self._lock = threading.Lock()
        self._hellos: dict[socket.socket, float] = {}
        self._connections: set[socket.socket] = set()
        self._is_closed = False
        self._listener = _listener(bind)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="forerun-accept", daemon=True).start()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._connections)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            open_now = [*self._connections, *self._hellos]
        # A listener that is only closed would leave its thread in accept.
        for connection in [self._listener, *open_now]:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                # No file descriptors are left, for example. Others may be closed soon.
                log.warning("cannot accept a connection: %s", error)
                time.sleep(0.1)
                continue
            with self._lock:
                is_full = len(self._hellos) >= self._hellos_max
                if is_full:
                    # The oldest hello makes room, so that silent peers do not keep others out.
                    oldest = min(self._hellos, key=lambda peer: self._hellos[peer])
                    del self._hellos[oldest]
                    _shut(oldest)
                self._hellos[connection] = time.monotonic()
            try:
                threading.Thread(
                    target=self._run, args=(connection,), name="forerun-shard", daemon=True
                ).start()
            except RuntimeError as error:
                log.warning("cannot start a thread for a connection: %s", error)
                with self._lock:
                    self._hellos.pop(connection, None)
                connection.close()

    def _run(self, connection: socket.socket) -> None:
        try:
            with connection:
                if self._welcome(connection):
                    self._serve(connection)
        except (OSError, FrameError) as error:
            log.info("a connection ended: %r", error)
        finally:
            with self._lock:
                self._hellos.pop(connection, None)
                self._connections.discard(connection)

    def _welcome(self, connection: socket.socket) -> bool:
        deadline = time.monotonic() + HELLO_S
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that has vanished without a word is noticed after two minutes.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        hello = bytearray(frames.HELLO.size)
        if not receive(connection, memoryview(hello), deadline):
            return False
        magic, version, token = frames.HELLO.unpack(hello)
        is_known = hmac.compare_digest(token, self.token)
        is_welcome = magic == frames.MAGIC and version == frames.VERSION and is_known
        with self._lock:
            if self._hellos.pop(connection, None) is None:
                return False
            is_full = len(self._connections) >= self._connections_max
            status = frames.REFUSED
            if is_welcome and not self._is_closed:
                status = frames.FULL if is_full else frames.WELCOMED
            if status == frames.WELCOMED:
                self._connections.add(connection)
        answer = frames.WELCOME.pack(frames.MAGIC, frames.VERSION, status)
        send(connection, memoryview(answer), deadline)
        return status == frames.WELCOMED

    def _serve(self, connection: socket.socket) -> None:
        head = memoryview(bytearray(frames.REQUEST.size))
        body = np.empty(0, np.uint8)
        session = self._shard.session()
        set_timeout(connection, socket.SO_RCVTIMEO, FRAME_S)
        try:
            while True:
                try:
                    count = connection.recv_into(head, 0, socket.MSG_WAITALL)
                except BlockingIOError:
                    # Between frames a client may be silent as long as it likes, but it takes no
                    # memory meanwhile.
                    body = np.empty(0, np.uint8)
                    session.release()
                    continue
                if count == 0:
                    return
                deadline = time.monotonic() + FRAME_S
                is_whole = count == len(head)
                if not is_whole and not receive(connection, head[count:], deadline):
                    raise FrameError("the peer has closed in the middle of a frame")
                request = frames.parse_request(head, self._shard.row_bytes)
                if request.body_bytes > len(body):
                    body = np.empty(request.body_bytes, np.uint8)
                part = body[: request.body_bytes]
                if len(part) > 0 and not receive(connection, part.data, deadline):
                    raise FrameError("the peer has closed in the middle of a frame")
                if len(part) > 0 or not is_whole:
                    set_timeout(connection, socket.SO_RCVTIMEO, FRAME_S)
                if request.op in frames.WRITES and _has_closed(connection):
                    # Its client has given it up, and may have written something else since.
                    raise FrameError("the peer has closed before its write was applied")
                answer = session.serve(request, part)
                send(connection, answer.data, time.monotonic() + FRAME_S)
        finally:
            session.close()


def _listener(bind: str) -> socket.socket:
    if ":" not in bind:
        return socket.create_server((bind, 0), backlog=128)
    return socket.create_server(
        (bind, 0),
        family=socket.AF_INET6,
        backlog=128,
        # "::" is every address, those of IPv4 included.
        dualstack_ipv6=bind == "::" and socket.has_dualstack_ipv6(),
    )


def _has_closed(connection: socket.socket) -> bool:
    """Whether the peer has closed its side. It sends nothing more before it has its answer."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
