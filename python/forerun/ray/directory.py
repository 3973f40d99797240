"""What a handle knows of the cluster: the map, and the shards' actors."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import ray

from forerun.errors import Error, ServerError
from forerun.ray.connected import RayConnection
from forerun.ray.connection import ActorCalls, Endpoint
from forerun.ray.coordinator import coordinator_name
from forerun.ray.shard_actors import shard_name
from forerun.ray.shard_map import ShardMap
from forerun.ray.table_config import TableConfig

# Between two questions for a map that is not there yet.
PAUSE_S = 0.005
# How long the coordinator may take for the map, after an attempt that took its time.
MAP_S = 2.0


class Directory:
    """What a handle knows of the cluster: the map, and the shards' actors."""

    def __init__(self, name: str, namespace: str, transport: str) -> None:
        self.name, self.namespace, self.transport = name, namespace, transport
        self._lock = threading.Lock()
        self._actors: dict[tuple[int, int], Any] = {}
        # Shards that were asked where they are, and have not answered yet.
        self._asked: dict[tuple[int, int], Any] = {}
        self._suspects: set[int] = set()
        # By client and shard: acknowledged writes that are lost, and their keys.
        self._lost: dict[tuple[str, int], tuple[int, int]] = {}
        self.ray_connection = RayConnection()
        self.coordinator = ray.get_actor(coordinator_name(name), namespace=namespace)
        self.config: TableConfig
        self.map: ShardMap
        self.config, self.map = self.ask("describe", timeout=120)
        dtype = "uint16" if self.config.dtype == "bfloat16" else self.config.dtype
        self.row_bytes = self.config.dim * np.dtype(dtype).itemsize

    def ask(self, method: str, *args: Any, timeout: float) -> Any:
        """Calls the coordinator, and again while it restarts."""
        self.ray_connection.check()
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                answer = getattr(self.coordinator, method).remote(*args)
                return ray.get(answer, timeout=max(left, 0.1))
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, Error):
                    raise error.cause from None
                raise
            except ray.exceptions.ActorDiedError as error:
                raise ServerError(f"the coordinator of {self.name!r} is gone: {error}") from error
            except ray.exceptions.RayActorError as error:
                if left <= 0:
                    raise ServerError(f"the coordinator did not come back: {error}") from error
                time.sleep(0.1)
            except ray.exceptions.GetTimeoutError as error:
                raise ServerError("the coordinator did not answer in time") from error

    def take(self, new: ShardMap) -> None:
        with self._lock:
            if new.version > self.map.version:
                self.map = new

    def stats(self, timeout: float) -> dict[str, Any]:
        """The coordinator's numbers, with what this handle knows to be lost."""
        with self._lock:
            reports = [(*key, *counts) for key, counts in self._lost.items()]
        answer: dict[str, Any] = self.ask("stats", reports, timeout=timeout)
        return answer

    def newer_map(self, known: ShardMap, deadline: float) -> ShardMap:
        """A newer map if there is one soon, else the same: a move that was about to happen may be
        cancelled."""
        for suspect in list(self._suspects):
            self._suspects.discard(suspect)
            self._restore(suspect, deadline)
        if self.map.version == known.version:
            left = max(deadline - time.monotonic(), 0.1)
            self.take(self.ask("current_map", timeout=left))
        if self.map.version == known.version:
            time.sleep(PAUSE_S)
        return self.map

    def suspect(self, shard: int) -> None:
        """A shard has no map, so it has lost its directory."""
        self._suspects.add(shard)

    def endpoint(self, shard: int, until: float) -> tuple[Endpoint, Any]:
        """Where a shard is now. A shard that Ray gave up is restored, which may take longer: ask
        again."""
        self.ray_connection.check()
        generation = self.map.places[shard].generation
        key = (shard, generation)
        left = max(until - time.monotonic(), 0.01)
        try:
            actor = self._actors.get(key)
            if actor is None:
                name = shard_name(self.name, shard, generation)
                actor = ray.get_actor(name, namespace=self.namespace)
                self._actors[key] = actor
            # An answer that comes after its attempt counts for the next one.
            asked = self._asked.pop(key, None) or actor.endpoint.remote()
            try:
                endpoint: Endpoint = ray.get(asked, timeout=left)
            except ray.exceptions.GetTimeoutError:
                self._asked[key] = asked
                raise
            return endpoint, actor
        except (
            ray.exceptions.ActorDiedError,
            ray.exceptions.ActorUnschedulableError,
            ValueError,
        ) as error:
            # A handle of an actor that was ended is no longer of use.
            self._actors.pop(key, None)
            self._restore(shard, until)
            raise ConnectionError(f"shard {shard} has ended: {error}") from error
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            # It restarts, or it is restored elsewhere meanwhile.
            self.take(self.ask("current_map", timeout=max(until - time.monotonic(), MAP_S)))
            raise

    def wire(self, actor: Any) -> ActorCalls | None:
        """What carries frames to a shard, if it is not its data port."""
        return ActorCalls(actor, self.ray_connection) if self.transport == "actor" else None

    def _restore(self, shard: int, deadline: float) -> None:
        generation = self.map.places[shard].generation
        left = max(deadline - time.monotonic(), 0.1)
        self.take(self.ask("restore", shard, generation, timeout=left))

    def report_lost(self, client: str, shard: int, writes: int, keys: int) -> None:
        """Counts acknowledged writes of a client that are lost. The coordinator may be away now, so
        `stats` tells it again."""
        with self._lock:
            before = self._lost.get((client, shard), (0, 0))
            counts = self._lost[client, shard] = (before[0] + writes, before[1] + keys)
        self.ray_connection.check()
        self.coordinator.report_lost.remote(client, shard, *counts)
