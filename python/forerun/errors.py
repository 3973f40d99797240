"""The exceptions of this package. Every message says what failed and where."""


class Error(Exception):
    """The base of all errors of this package."""


class InvalidArgumentError(Error, ValueError):
    """An argument that cannot be used: a key that is too long, an array of the wrong shape."""


class NotFoundError(Error, FileNotFoundError):
    """The path holds no store, or there is no keyspace with that name."""


class AlreadyExistsError(Error, FileExistsError):
    """The path already holds a store."""


class LockedError(Error):
    """The store is already open, in this process or in another.

    One process at a time writes to a store, and none while others read it. A checkpoint can be read
    meanwhile, by any number of processes that open it with `read_only=True`.
    """


class ClosedError(Error):
    """The handle is closed."""


class ForkedError(Error, RuntimeError):
    """Another process opened the handle, and this one is a fork of it.

    Open the path again in this process. What has no path stays in the other process.
    """


class CorruptionError(Error):
    """Bytes on disk or in memory differ from those that were written."""


class VersionError(Error):
    """A newer release wrote the store, or its key order differs from the one it was opened with, or
    it does not hold the table that was asked for."""


class MemoryLimitError(Error, MemoryError):
    """A write or a structure does not fit in its memory limit."""


class ReadOnlyError(Error):
    """The store takes no more writes after an earlier failure, or was opened read-only."""


class IoError(Error, OSError):
    """The operating system failed a call."""


class DeviceError(Error, RuntimeError):
    """There is no usable GPU, or it failed."""


class ServerError(Error, OSError):
    """A server did not answer a client, or refused. A write may have happened, unless the message
    says that the server refused it or cannot be connected to."""


class GroupError(Error, RuntimeError):
    """Another process of a group failed in a call that all of them make, so nothing was done.

    `rank` is that of the process. The message has its error.
    """

    def __init__(self, words: str, rank: int) -> None:
        super().__init__(words)
        self.rank = rank


class PartialError(Error):
    """Some keys of a batch failed; all others were served.

    `positions` are the positions of the failed keys.
    """

    def __init__(self, words: str, positions: list[int]) -> None:
        super().__init__(words)
        self.positions = positions
