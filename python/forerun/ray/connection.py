"""A connection to a shard: requests out, answers into the caller's memory."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun import errors
from forerun.errors import ServerError
from forerun.ray import frames
from forerun.ray.connected import DisconnectedError, RayConnection
from forerun.ray.data_port import receive, send
from forerun.ray.frames import Answer, FrameError, Op, Request, Status

Buffer = NDArray[np.uint8]
NO_CLIENT = bytes(frames.CLIENT_BYTES)


class Endpoint(NamedTuple):
    """Where a shard's data port is, in the process that runs now."""

    host: str
    port: int
    token: bytes
    generation: int
    row_bytes: int


class Wire(Protocol):
    """Carries frames to a shard."""

    def send(self, data: list[bytes | memoryview]) -> None:
        """Begins to send, without waiting. What the peer does not take at once is sent by
        `send_more` and by `receive`, so it must stay as it is."""

    @property
    def is_sending(self) -> bool:
        """Whether something is left to send."""

    def send_more(self) -> None:
        """Sends what the peer takes now. An error is raised by the next `receive`."""

    def receive(self, deadline: float) -> memoryview:
        """The head of the next answer."""

    def receive_body(self, into: memoryview, deadline: float) -> None: ...

    def pending(self) -> Any:
        """What to wait for until the next answer arrives: a file descriptor, or an object of
        Ray."""

    def end_export(self, request: bytes) -> None:
        """Ends an export, of which the caller wants no more."""

    def close(self) -> None: ...


class Socket:
    """Frames over the shard's data port."""

    def __init__(self, endpoint: Endpoint, deadline: float) -> None:
        left = max(deadline - time.monotonic(), 1e-3)
        self._socket = socket.create_connection((endpoint.host, endpoint.port), timeout=left)
        try:
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = frames.HELLO.pack(frames.MAGIC, frames.VERSION, endpoint.token)
            send(self._socket, memoryview(hello), deadline)
            welcome = bytearray(frames.WELCOME.size)
            if not receive(self._socket, memoryview(welcome), deadline):
                raise FrameError("the shard has closed the connection")
            magic, version, status = frames.WELCOME.unpack(welcome)
            if (magic, version) != (frames.MAGIC, frames.VERSION):
                raise FrameError("the peer is not a shard")
            if status == frames.FULL:
                raise ServerError(
                    "the shard refused the connection: it has as many as the table's "
                    "`connections_max`"
                )
            if status != frames.WELCOMED:
                raise FrameError("the shard refused the connection: it has restarted")
        except BaseException:
            self._socket.close()
            raise
        self._head = memoryview(bytearray(frames.ANSWER.size))
        self._unsent: list[memoryview] = []
        self._error: OSError | None = None

    def send(self, data: list[bytes | memoryview]) -> None:
        self._unsent = [memoryview(part) for part in data if len(part) > 0]
        self._send_now()

    @property
    def is_sending(self) -> bool:
        return len(self._unsent) > 0

    def send_more(self) -> None:
        try:
            self._send_now()
        except OSError as error:
            self._unsent.clear()
            self._error = error

    def _send_now(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.sendmsg(self._unsent, (), socket.MSG_DONTWAIT)
                while self._unsent and sent >= len(self._unsent[0]):
                    sent -= len(self._unsent.pop(0))
                if sent > 0:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            # A shard that hangs must not keep frames of the others from being sent.
            return

    def receive(self, deadline: float) -> memoryview:
        if self._error is not None:
            raise self._error
        while self._unsent:
            send(self._socket, self._unsent[0], deadline)
            self._unsent.pop(0)
        if not receive(self._socket, self._head, deadline):
            raise FrameError("the shard has closed the connection")
        return self._head

    def receive_body(self, into: memoryview, deadline: float) -> None:
        if len(into) > 0 and not receive(self._socket, into, deadline):
            raise FrameError("the shard has closed the connection")

    def pending(self) -> int:
        return self._socket.fileno()

    def end_export(self, request: bytes) -> None:
        """It ends with the connection."""

    def close(self) -> None:
        self._socket.close()


class ActorCalls:
    """Frames as calls of the shard's actor."""

    def __init__(self, actor: Any, ray_connection: RayConnection) -> None:
        self._actor, self._ray_connection = actor, ray_connection
        self._answers: list[Any] = []
        self._body = memoryview(b"")

    is_sending = False

    def send(self, data: list[bytes | memoryview]) -> None:
        self._ray_connection.check()
        self._answers.append(self._actor.frame.remote(b"".join(data)))

    def send_more(self) -> None:
        """Ray has all of it."""

    def receive(self, deadline: float) -> memoryview:
        import ray

        self._ray_connection.check()
        left = max(deadline - time.monotonic(), 1e-3)
        try:
            answer = ray.get(self._answers.pop(0), timeout=left)
        except ray.exceptions.RayError as error:
            raise ConnectionError(f"a call of the shard's actor failed: {error}") from error
        self._body = memoryview(answer)[frames.ANSWER.size :]
        return memoryview(answer)[: frames.ANSWER.size]

    def receive_body(self, into: memoryview, deadline: float) -> None:
        if len(into) != len(self._body):
            raise FrameError("an answer of another length than its head says")
        into[:] = self._body

    def pending(self) -> Any:
        return self._answers[0]

    def end_export(self, request: bytes) -> None:
        try:
            self._ray_connection.check()
        except DisconnectedError:
            # The shard ends it after some minutes.
            return
        self._actor.frame.remote(request)

    def close(self) -> None:
        self._answers.clear()


class Connection:
    """Frames to one shard, one at a time."""

    def __init__(
        self, endpoint: Endpoint, deadline: float, wire: Wire | None = None
    ) -> None:
        self.endpoint = endpoint
        self.row_bytes = endpoint.row_bytes
        self._wire: Wire = wire or Socket(endpoint, deadline)
        self._deadline = deadline
        self._id = 0
        self._body: Buffer = np.empty(0, np.uint8)

    def close(self) -> None:
        self._wire.close()

    def pending(self) -> Any:
        return self._wire.pending()

    @property
    def is_sending(self) -> bool:
        return self._wire.is_sending

    def send_more(self) -> None:
        self._wire.send_more()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def send(
        self,
        op: Op,
        body: list[memoryview],
        count: int,
        *,
        map_version: int = 0,
        client: bytes = NO_CLIENT,
        sequence: int = 0,
        argument: int = 0,
    ) -> None:
        """Begins to send a request. `body` must stay as it is until the answer has come."""
        self._id += 1
        size = sum(map(len, body))
        head = Request(size, op, self._id, map_version, client, sequence, count, argument)
        self._wire.send([head.pack(), *body])

    def receive(self, deadline: float) -> tuple[Answer, Buffer]:
        """The answer to the last request. Its body is reused by the next one."""
        head = self._wire.receive(deadline)
        answer = frames.parse_answer(head, self._id, self.row_bytes)
        if answer.body_bytes > len(self._body):
            self._body = np.empty(answer.body_bytes, np.uint8)
        body = self._body[: answer.body_bytes]
        self._wire.receive_body(body.data, deadline)
        return answer, body

    def ask(
        self,
        op: Op,
        *body: memoryview,
        deadline: float | None = None,
        client: bytes = NO_CLIENT,
        sequence: int = 0,
        argument: int = 0,
    ) -> tuple[Answer, Buffer]:
        """A request without keys, and its answer. Raises the shard's error."""
        deadline = self._deadline if deadline is None else deadline
        self.send(op, list(body), 0, client=client, sequence=sequence, argument=argument)
        answer, found = self.receive(deadline)
        if answer.status == Status.FAILED:
            raise error_of(bytes(found[answer.keys :]))
        return answer, found

    def export(
        self, buckets: NDArray[np.bool_], batch: int, client: bytes = NO_CLIENT
    ) -> NDArray[np.bool_]:
        """Begins an export of some buckets, as of now. Returns those that the shard owns."""
        asked = np.packbits(buckets).data
        _, body = self.ask(Op.EXPORT, asked, client=client, argument=batch)
        if len(body) != frames.BITMAP_BYTES:
            raise FrameError("an export of other buckets")
        return np.unpackbits(body).view(np.bool_)

    def end_export(self, client: bytes) -> None:
        self._id += 1
        request = Request(0, Op.EXPORT_END, self._id, 0, client, 0, 0, 0)
        self._wire.end_export(request.pack())

    def exported(
        self, client: bytes = NO_CLIENT, timeout: float = 60.0
    ) -> Iterator[tuple[NDArray[np.uint64], Buffer]]:
        """The rows of the export, batch by batch, as bytes."""
        while True:
            deadline = time.monotonic() + timeout
            answer, body = self.ask(Op.EXPORT_NEXT, deadline=deadline, client=client)
            if answer.keys == 0:
                return
            if len(body) != answer.keys * (8 + self.row_bytes):
                raise FrameError("rows of another length")
            keys = body[: 8 * answer.keys].view("<u8").astype(np.uint64)
            yield keys, body[8 * answer.keys :].copy()

    def changes(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_], Buffer, int, int]:
        """Keys that were written since a move began, whether they have rows, the rows, how many
        keys are left of the round, and how many were noted since it began."""
        answer, body = self.ask(Op.CHANGES, deadline=time.monotonic() + 60)
        count = answer.keys
        if len(body) != count * (9 + self.row_bytes) + 16:
            raise FrameError("changes of another length")
        keys = body[: 8 * count].view("<u8").astype(np.uint64)
        found = body[8 * count : 9 * count].astype(np.bool_)
        left, noted = body[-16:].copy().view("<u8").tolist()
        return keys, found, body[9 * count : -16].copy(), left, noted


def wait_for_answers(connections: list[Connection], until: float) -> list[int]:
    """Waits until one of the connections has something to receive, or the time is over, and
    meanwhile sends what is left to send. Returns the positions of those that have."""
    pending = [connection.pending() for connection in connections]
    if all(isinstance(each, int) for each in pending):
        return _poll(connections, pending, until)
    left = max(until - time.monotonic(), 0.0)
    import ray

    done, _ = ray.wait(pending, num_returns=1, timeout=left, fetch_local=False)
    if done:
        done, _ = ray.wait(pending, num_returns=len(pending), timeout=0, fetch_local=False)
    return [at for at, each in enumerate(pending) if each in done]


def _poll(connections: list[Connection], descriptors: list[int], until: float) -> list[int]:
    poll = select.poll()
    for connection, descriptor in zip(connections, descriptors):
        poll.register(descriptor, select.POLLIN | select.POLLOUT * connection.is_sending)
    while True:
        left = max(until - time.monotonic(), 0.0)
        # Rounded up, so that nothing is asked before it is time.
        events = dict(poll.poll(int(left * 1e3) + (left > 0)))
        for connection, descriptor in zip(connections, descriptors):
            if events.get(descriptor, 0) & select.POLLOUT:
                connection.send_more()
                if not connection.is_sending:
                    poll.modify(descriptor, select.POLLIN)
        ready = [
            at
            for at, descriptor in enumerate(descriptors)
            # An error, or the end, too.
            if events.get(descriptor, 0) & ~select.POLLOUT
        ]
        if ready or not events:
            return ready


def error_of(text: bytes) -> Exception:
    """The exception that a shard describes."""
    name, _, words = text.decode(errors="replace").partition(": ")
    known = getattr(errors, name, None)
    if isinstance(known, type) and issubclass(known, errors.Error):
        if known is errors.PartialError:
            return errors.PartialError(words, [])
        return known(words)
    return ServerError(text.decode(errors="replace"))
