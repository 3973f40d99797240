"""Collective calls: if one process of a group fails, all processes learn of it.

    message   0      1        2   4            8        16       24
             ┌──────┬────────┬───┬────────────┬────────┬────────┬──────┬──────┐
             │ call │ status │ 0 │ bytes of   │ number │ digest │ text │ body │
             │ 1    │ 1      │ 2 │ the text,4 │ 8      │ 8      │      │      │
             └──────┴────────┴───┴────────────┴────────┴────────┴──────┴──────┘

    call      what the process calls: all must make the same call
    status    0: the text names the table; 1: the process has failed, and the text says why
    number    how many exchanges for this table came before
    digest    of what must be the same in all processes, as the seed that places the keys

Every exchange of a call carries such a message from each process to each. A process that fails
between two exchanges still takes part in the next one, with its error. So the others do not wait
for it until the time-out of their group, which remains for a process that has vanished.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.errors import GroupError, InvalidArgumentError

__all__ = ["AllToAll", "Bytes", "Call", "CollectiveCalls", "Message"]

Bytes = NDArray[np.uint8]
AllToAll = Callable[[list[Bytes]], list[Bytes]]
T = TypeVar("T")

_HEAD = struct.Struct("<BB2xIQ8s")
_TEXT_BYTES_MAX = 4096


class Call(enum.IntEnum):
    """What a process calls."""

    CONSTRUCT = 1
    FIND = 2
    ADD_AT = 3
    CHECKPOINT = 4
    LOAD = 5

    @property
    def words(self) -> str:
        return self.name.lower()


class Message(NamedTuple):
    """What one process sent."""

    body: Bytes
    # Why it has failed, if it has.
    failure: str | None


class CollectiveCalls:
    """The exchanges of the calls for one table of a group. One call is made at a time. `table`
    names the table: the processes must call for the same one."""

    def __init__(
        self,
        rank: int,
        processes: int,
        all_to_all: AllToAll,
        same: tuple[object, ...] = (),
        table: str = "",
    ) -> None:
        self._rank, self._processes, self._all_to_all = rank, processes, all_to_all
        self._digest = hashlib.blake2b(repr(same).encode(), digest_size=8).digest()
        self.table = table
        self._begun = 0
        # Those that all processes have made for this table. After a call that was interrupted in
        # one process only, the answers of the others must not be taken for those of the next call.
        self._ended = 0

    def begin(
        self, call: Call, make: Callable[[], tuple[T, list[list[Bytes]]]]
    ) -> tuple[T, list[Bytes]]:
        """The first exchange of a call. `make` returns anything, which is returned, and for each
        process what to send it. If it fails in one process, all raise, and nothing has happened."""
        with self.joining(call):
            made, bodies = make()
            messages = self.exchange(call, bodies)
        self.check(call, messages)
        return made, [message.body for message in messages]

    def agree(self, call: Call, act: Callable[[], None], body: bytes = b"") -> list[Bytes]:
        """Does something in every process. If it fails in one, all raise."""

        def make() -> tuple[None, list[list[Bytes]]]:
            act()
            return None, [[np.frombuffer(body, np.uint8)]] * self._processes

        return self.begin(call, make)[1]

    @contextmanager
    def joining(self, call: Call) -> Iterator[None]:
        """Inside, this process begins a call. If it fails before the first exchange, it tells the
        others, who wait there."""
        before = self._begun
        try:
            yield
        except BaseException as error:
            if self._begun == before:
                try:
                    self.exchange(call, [[]] * self._processes, error)
                except Exception:
                    # The group has failed, too. The first error is the cause, or it says more.
                    pass
            raise

    def exchange(
        self, call: Call, bodies: list[list[Bytes]], error: BaseException | None = None
    ) -> list[Message]:
        """Sends a message to each process: the parts of its body, and this process's failure.
        Returns the messages of all processes."""
        failure: BaseException | None = None
        try:
            data = self._messages(call, bodies, error)
        except Exception as raised:
            # Memory is short, for example. The others wait all the same.
            data, failure = self._messages(call, [[]] * self._processes, raised), raised
        self._begun += 1
        came = self._all_to_all(data)
        messages: list[Message] = []
        try:
            messages = [self._parse(call, rank, each) for rank, each in enumerate(came)]
            self._ended += 1
        finally:
            if failure is not None:
                raise failure
        return messages

    def _messages(
        self, call: Call, bodies: list[list[Bytes]], error: BaseException | None
    ) -> list[Bytes]:
        text = (self.table if error is None else _words(error)).encode()[:_TEXT_BYTES_MAX]
        status = error is not None
        head = _HEAD.pack(call, status, len(text), self._ended, self._digest) + text
        start = np.frombuffer(head, np.uint8)
        return [np.concatenate([start, *body]) for body in bodies]

    def check(self, call: Call, messages: list[Message]) -> None:
        """Raises the failure of another process."""
        for rank, message in enumerate(messages):
            if message.failure is not None:
                raise GroupError(f"process {rank} failed in {call.words}: {message.failure}", rank)

    def _parse(self, call: Call, rank: int, data: Bytes) -> Message:
        if len(data) < _HEAD.size:
            raise GroupError(f"process {rank} sent {len(data)} bytes, which are no message", rank)
        other, status, text_bytes, number, digest = _HEAD.unpack(data[: _HEAD.size].tobytes())
        rest = data[_HEAD.size :]
        text = rest[:text_bytes].tobytes().decode(errors="replace")
        if status == 0:
            if other != call or text != self.table:
                there, here = _name(other), call.words
                if text != self.table:
                    there, here = f"{there} of {text}", f"{here} of {self.table}"
                raise GroupError(
                    f"process {rank} calls {there} while this one calls {here}", rank
                )
            if digest != self._digest:
                raise InvalidArgumentError(
                    f"process {rank} has rows of another size or type, or another seed"
                )
            if number != self._ended:
                raise GroupError(
                    f"process {rank} has made {number} exchanges for this table, and this one "
                    f"{self._ended}, because a call was interrupted in one of them: end all "
                    "processes, and start them again",
                    rank,
                )
        return Message(rest[text_bytes:], text if status != 0 else None)


def _name(call: int) -> str:
    try:
        return Call(call).words
    except ValueError:
        return f"call {call}"


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
