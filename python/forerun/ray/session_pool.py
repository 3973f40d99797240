"""The sessions of a handle: one for each call that runs."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from forerun.errors import Error
from forerun.ray.connected import DisconnectedError
from forerun.ray.given_up import GivenUpWrites
from forerun.ray.session import Session

if TYPE_CHECKING:
    from forerun.ray.directory import Directory

# Idle sessions that are kept for the next calls.
SESSIONS_MAX = 16
# How long `close` waits for shards.
CLOSE_S = 1.0


class SessionPool:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._given_up = GivenUpWrites()
        self.is_closed = False

    def session(self) -> Borrowed:
        """A session for one call, as a context."""
        return Borrowed(self)

    def take(self) -> Session:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Session(self._directory, self._given_up)

    def put(self, session: Session, error: BaseException | None) -> None:
        """Takes a session back after a call, if the call has left it in order."""
        is_in_order = error is None or isinstance(error, Error)
        if isinstance(error, DisconnectedError):
            # Other shards may still owe their answers.
            is_in_order = False
        with self._lock:
            is_kept = is_in_order and not self.is_closed and len(self._idle) < SESSIONS_MAX
            if is_kept:
                self._idle.append(session)
        if not is_kept:
            session.close() if is_in_order else session.drop()

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            idle, self._idle = self._idle, []
        if self._given_up.shards():
            session = idle[0] if idle else Session(self._directory, self._given_up)
            session.fence_all(time.monotonic() + CLOSE_S)
            if not idle:
                session.close()
        for session in idle:
            session.close()


class Borrowed:
    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool

    def __enter__(self) -> Session:
        self._session = self._pool.take()
        return self._session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.put(self._session, error)
