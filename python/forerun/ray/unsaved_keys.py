"""How many keys of a shard no backup has, as far as the coordinator knows.

    process a   ├── saved ──┤ written ├ killed     earlier: what a wrote after its last backup
    process b                             ├──┤     each process counts from 0
"""

from __future__ import annotations

import threading


class UnsavedKeys:
    """Takes reports of the processes of a shard, one after the other, in any order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token: bytes | None = None
        self._ended: set[bytes] = set()
        self._written = self._saved = self._earlier = 0

    @property
    def count(self) -> int:
        """At least so many keys were written since the last backup. A key that was written twice
        counts twice."""
        with self._lock:
            return self._earlier + self._written - self._saved

    def note_written(self, token: bytes, keys: int) -> None:
        """The process with this token has written so many keys."""
        with self._lock:
            if self._enter(token):
                self._written = max(self._written, keys)

    def note_backup(self, token: bytes, keys: int) -> None:
        """A backup has what the process had written by then."""
        with self._lock:
            if self._enter(token):
                self._written = max(self._written, keys)
                self._saved = max(self._saved, keys)
            # That of a process that has ended has some of what is counted here.
            self._earlier = 0

    def _enter(self, token: bytes) -> bool:
        """Whether the process is the last that is known. A report of an earlier one is late."""
        if token in self._ended:
            return False
        if token != self._token:
            if self._token is not None:
                self._ended.add(self._token)
            self._earlier += self._written - self._saved
            self._written = self._saved = 0
            self._token = token
        return True
