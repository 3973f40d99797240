"""Whether this process is connected to Ray, and still to the cluster of a handle.

Most functions of Ray start a cluster if there is none, and a handle of an actor is of no use after
`ray.shutdown`, also if `ray.init` follows. So every way into Ray passes here first.
"""

from __future__ import annotations

import ray

from forerun.errors import ClosedError


class DisconnectedError(ClosedError):
    """This process is not connected to the cluster."""


def check_connected() -> None:
    if not ray.is_initialized():
        raise DisconnectedError("this process is not connected to Ray: call ray.init() first")


class RayConnection:
    """The connection to Ray with which a handle was made."""

    def __init__(self) -> None:
        check_connected()
        self._worker_id = _worker_id()

    def check(self) -> None:
        check_connected()
        if _worker_id() != self._worker_id:
            raise DisconnectedError(
                "Ray was shut down after this handle was made: make one with ShardedTable.attach"
            )


def _worker_id() -> str:
    """Ray's ID of this process, which is another one after each `ray.init`."""
    worker_id: str = ray.get_runtime_context().get_worker_id()
    return worker_id
