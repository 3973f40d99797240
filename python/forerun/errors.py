"""What can go wrong. Every message names the thing and the place."""


class Error(Exception):
    """The base of all errors of this package."""


class InvalidArgumentError(Error, ValueError):
    """An argument that cannot be used: a key that is too long, an array of the wrong shape."""


class NotFoundError(Error, FileNotFoundError):
    """There is no store where one was to be opened, or the path holds something else; or no keyspace of that name."""


class AlreadyExistsError(Error, FileExistsError):
    """There is a store where a new one was to be created."""


class LockedError(Error):
    """The store is already open, in this process or in another."""


class ClosedError(Error):
    """The handle was closed."""


class ForkedError(Error, RuntimeError):
    """The handle was opened by another process, of which this one is a fork. Open the path again in this process."""


class CorruptionError(Error):
    """Bytes on disk or in memory are not what was written."""


class VersionError(Error):
    """The store was written by a newer release, or is ordered otherwise than it was opened."""


class MemoryLimitError(Error, MemoryError):
    """A write or a structure does not fit in the memory it may take."""


class ReadOnlyError(Error):
    """The store takes no more writes after an earlier failure, or was opened read-only."""


class IoError(Error, OSError):
    """The operating system failed a call."""


class DeviceError(Error, RuntimeError):
    """There is no GPU to do it, or the GPU failed."""


class PartialError(Error):
    """Some keys of a batch could not be served; all others were. `positions` are theirs in the batch."""

    def __init__(self, words: str, positions: list[int]) -> None:
        super().__init__(words)
        self.positions = positions
