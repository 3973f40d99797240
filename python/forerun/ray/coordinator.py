"""The coordinator of a table: an actor that places shards and changes the map.

    ShardedTable ──map, names──> coordinator ──orders with its epoch──> shard, shard, shard ...
         └────────────── frames over TCP ──────────────────────────────────^

    move     taker: expect rows      giver: note changes      taker: copy, catch up
             giver: freeze           taker: catch up          taker: install the map  <- in force
             giver and others: install the map                giver: erase what it gave

Ray restarts the actors, each shard on its node. All are detached: they live until
`ShardedTable.shutdown`. A coordinator that restarts asks the shards for the newest map. Its orders
have an epoch, and shards refuse those of a former one.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forerun.errors import (
    ClosedError,
    Error,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
)
from forerun.ray.connection import Endpoint
from forerun.ray.shard import ShardConfig
from forerun.ray.shard_actor import remote_shard
from forerun.ray.shard_map import BUCKETS, Place, ShardMap, ShardState, even_owners, plan

log = logging.getLogger("forerun.ray")

# How long an order to a shard may take before the coordinator gives up.
ORDER_S = 120.0
# An order that reads or copies all rows of a shard.
LONG_ORDER_S = 24 * 3600.0
# How often the coordinator asks shards what was written.
WATCH_S = 1.0
# Ray does not restart such an actor.
_GONE = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError)


@dataclass(frozen=True)
class TableConfig:
    """How a table is made."""

    name: str
    namespace: str
    dim: int
    dtype: str
    shards: int
    path: str
    bind: str
    backups: str | None
    nodes: tuple[str, ...] | None
    num_cpus: float
    options: dict[str, Any] = field(default_factory=dict)


def coordinator_name(name: str) -> str:
    return f"{name}/coordinator"


def shard_name(name: str, shard: int, generation: int) -> str:
    return f"{name}/shard-{shard:04}/{generation}"


def _nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster, dead ones included."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


class Coordinator:
    """Places shards, and changes the map."""

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        self._changing = threading.Lock()
        self._lost: dict[tuple[str, int], tuple[int, int]] = {}
        self._recoveries: list[dict[str, Any]] = []
        self._watched: dict[int, dict[str, Any]] = {}
        self._is_closed = False
        self._actors: dict[tuple[int, int], Any] = {}
        self._node_ids: dict[tuple[int, int], str] = {}
        # Shards that this process has made, until it has a map.
        self._new: list[Any] = []
        self._epoch = 0
        self._last_version = 0
        try:
            self._map = self._start()
        except BaseException:
            for actor in self._new:
                ray.kill(actor, no_restart=True)
            raise
        threading.Thread(target=self._watch, name="forerun-watch", daemon=True).start()

    # Shards.

    def _nodes(self) -> list[dict[str, Any]]:
        nodes = [node for node in _nodes() if node["Alive"]]
        if self._config.nodes is not None:
            wanted = self._config.nodes
            nodes = [n for n in nodes if n["NodeID"] in wanted or n["NodeManagerAddress"] in wanted]
        if not nodes:
            raise NotFoundError("none of the table's nodes is alive")
        return sorted(nodes, key=lambda node: str(node["NodeID"]))

    def _actor(self, shard: int, generation: int) -> Any:
        """The handle of a shard, which may be about to restart."""
        key = (shard, generation)
        if key not in self._actors:
            name = shard_name(self._config.name, shard, generation)
            self._actors[key] = ray.get_actor(name, namespace=self._config.namespace)
        return self._actors[key]

    def _create(self, shard: int, place: Place, restores: bool, node_id: str) -> Any:
        config = self._config
        shard_config = ShardConfig(
            table=config.name,
            shard=shard,
            generation=place.generation,
            dim=config.dim,
            dtype=config.dtype,
            path=config.path,
            bind=config.bind,
            backups=config.backups,
            restores=restores,
            options=config.options,
        )
        actor = remote_shard.options(
            name=shard_name(config.name, shard, place.generation),
            namespace=config.namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=32,
            num_cpus=config.num_cpus,
            # Its rows are on that node's disk.
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(shard_config)
        self._actors[shard, place.generation] = actor
        self._new.append(actor)
        self._node_ids[shard, place.generation] = node_id
        return actor

    def _place(self, shard: int, address: str | None = None) -> tuple[Place, str]:
        """A node for a shard: the one with this address, or the one whose turn it is."""
        nodes = self._nodes()
        here = [node for node in nodes if node["NodeManagerAddress"] == address] or nodes
        node = here[shard % len(here)]
        return Place(0, node["NodeManagerAddress"]), str(node["NodeID"])

    def _existing(self) -> dict[tuple[int, int], Any]:
        """The shards that run already, if a coordinator was here before."""
        prefix = f"{self._config.name}/shard-"
        found = {}
        for actor in ray.util.list_named_actors(all_namespaces=True):
            name, namespace = actor["name"], actor["namespace"]
            if namespace == self._config.namespace and name.startswith(prefix):
                number, generation = name[len(prefix) :].split("/")
                found[int(number), int(generation)] = self._actor(int(number), int(generation))
        return found

    def _start(self) -> ShardMap:
        """Finds the newest map of the shards that run, or of those on disk, or makes a new one."""
        actors = self._existing()
        if not actors:
            for shard in range(self._config.shards):
                place, node_id = self._place(shard)
                actors[shard, 0] = self._create(shard, place, False, node_id)
        states: dict[tuple[int, int], ShardState] = {}
        for key, actor in list(actors.items()):
            try:
                described = self._order(actor, "describe")
                states[key] = described["state"]
                self._node_ids[key] = described["node_id"]
            except _GONE as error:
                # Its node is gone. If the map needs it, it is made again below.
                log.warning("shard %s is gone: %r", key, error)
                ray.kill(actor, no_restart=True)
                del actors[key], self._actors[key]
        if not states:
            raise ServerError(f"no shard of table {self._config.name!r} can be reached")
        self._epoch = 1 + max(state.epoch for state in states.values())
        maps: list[ShardMap] = [s.map for s in states.values() if s.map is not None]
        if not maps:
            return self._first_map(actors)
        newest = max(maps, key=lambda known: known.version)
        frozen = max(state.frozen_version for state in states.values())
        self._last_version = max(newest.version, frozen)
        for shard, place in enumerate(newest.places):
            key = (shard, place.generation)
            if key not in actors:
                _, node_id = self._place(shard, place.node)
                actors[key] = self._create(shard, place, False, node_id)
        current = {(shard, place.generation) for shard, place in enumerate(newest.places)}
        for key in current:
            state = self._order(actors[key], "describe")["state"]
            if state.map is None and newest.owned_by(key[0]).any():
                # Its directory has vanished. It is restored when a client asks for it.
                log.warning("shard %d has no rows on its node", key[0])
                continue
            # This also ends a move that the former coordinator did not finish.
            self._order(actors[key], "install", self._epoch, newest)
        for key in actors.keys() - current:
            # Of a growth that did not end, or older than a restored shard.
            self._end(key, actors[key])
        return newest

    def _next_version(self) -> int:
        """A version that no map has, not even one of a change that failed."""
        self._last_version += 1
        return self._last_version

    def _first_map(self, actors: dict[tuple[int, int], Any]) -> ShardMap:
        places = []
        for shard in range(len(actors)):
            node = self._order(actors[shard, 0], "describe")["node"]
            places.append(Place(0, node))
        seed = int.from_bytes(np.random.default_rng().bytes(8), "little")
        first = ShardMap(self._next_version(), seed, even_owners(len(actors)), tuple(places))
        for actor in actors.values():
            self._order(actor, "install", self._epoch, first)
        return first

    def _end(self, key: tuple[int, int], actor: Any) -> None:
        try:
            ray.get(actor.close.remote(), timeout=30)
        except Exception as error:
            log.info("shard %s did not close: %r", key, error)
        ray.kill(actor, no_restart=True)
        self._actors.pop(key, None)

    def _order(self, actor: Any, method: str, *args: Any, timeout: float = ORDER_S) -> Any:
        """Calls a shard, and again while it restarts. All orders may be repeated."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return ray.get(getattr(actor, method).remote(*args), timeout=max(left, 0.1))
            except _GONE:
                raise
            except ray.exceptions.RayActorError as error:
                if left <= 0:
                    raise ServerError(f"a shard did not come back: {error}") from error
                time.sleep(0.1)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Error) else error

    def _endpoint(self, shard: int) -> Endpoint:
        place = self._map.places[shard]
        endpoint: Endpoint = self._order(self._actor(shard, place.generation), "endpoint")
        return endpoint

    # Calls of clients.

    def describe(self) -> tuple[TableConfig, ShardMap]:
        return self._config, self._map

    def current_map(self) -> ShardMap:
        return self._map

    def report_lost(self, client: str, shard: int, writes: int, keys: int) -> None:
        """A client's acknowledged writes that a restored shard does not have."""
        before = self._lost.get((client, shard), (0, 0))
        self._lost[client, shard] = (before[0] + writes, before[1] + keys)

    def stats(self) -> dict[str, Any]:
        lost = list(self._lost.values())
        return {
            "map_version": self._map.version,
            "shards": len(self._map.places),
            "lost_writes": sum(writes for writes, _ in lost),
            "lost_keys": sum(keys for _, keys in lost),
            "recoveries": list(self._recoveries),
        }

    def backup(self, keep: int) -> list[int]:
        """Backs up all shards, one after the other. Returns the numbers of the backups."""
        if self._config.backups is None:
            raise InvalidArgumentError("the table has no directory of backups: pass `backups`")
        if keep < 1:
            raise InvalidArgumentError("`keep` must be at least 1")
        with self._changing:
            return [self._backup(shard, keep) for shard in range(len(self._map.places))]

    def _backup(self, shard: int, keep: int = 3) -> int:
        actor = self._actor(shard, self._map.places[shard].generation)
        # A large shard takes long.
        made = self._order(actor, "backup", keep, timeout=LONG_ORDER_S)
        watched = self._watched.setdefault(shard, {})
        watched["backed_up"] = made["keys_written"]
        watched["keys_written"] = max(watched.get("keys_written", 0), made["keys_written"])
        watched["earlier"] = 0
        return int(made["backup"])

    def restore(self, shard: int, generation: int) -> ShardMap:
        """Replaces a shard that is lost by its last backup, on another node. `generation` is that
        of the lost one: of several callers the first restores it."""
        with self._changing:
            if self._is_closed:
                raise ClosedError("the table is shut down")
            if self._map.places[shard].generation != generation:
                return self._map
            if not self._is_lost(shard, generation):
                return self._map
            if self._config.backups is None:
                raise ServerError(
                    f"shard {shard} is lost with its node, and the table has no backups"
                )
            former = self._actors.pop((shard, generation), None)
            if former is not None:
                ray.kill(former, no_restart=True)
            place, node_id = self._place(shard)
            place = replace(place, generation=generation + 1)
            actor = self._create(shard, place, True, node_id)
            try:
                described = self._order(actor, "describe", timeout=LONG_ORDER_S)
            except (ray.exceptions.RayError, Error) as error:
                ray.kill(actor, no_restart=True)
                self._actors.pop((shard, place.generation), None)
                raise ServerError(f"shard {shard} cannot be restored: {error}") from error
            new = self._map.placed(self._next_version(), shard, place)
            # From here on the restored shard counts.
            self._order(actor, "install", self._epoch, new)
            self._publish(new, first=())
            self._order(actor, "sweep", self._epoch, timeout=LONG_ORDER_S)
            watched = self._watched.pop(shard, {})
            self._recoveries.append(
                {
                    "shard": shard,
                    "backup": (described["restored"] or {}).get("backup"),
                    "created_unix": (described["restored"] or {}).get("created_unix"),
                    # What the coordinator knows: clients report what they miss, exactly.
                    "keys_lost_at_least": watched.get("earlier", 0)
                    + watched.get("keys_written", 0)
                    - watched.get("backed_up", 0),
                }
            )
            return new

    def _is_lost(self, shard: int, generation: int) -> bool:
        """Whether a shard's node is gone, or its directory has vanished. A shard that has ended for
        another reason is started again: its rows are on the disk."""
        node_id = self._node_ids.get((shard, generation))
        try:
            actor = self._actor(shard, generation)
            state = ray.get(actor.describe.remote(), timeout=10)["state"]
            return state.map is None and bool(self._map.owned_by(shard).any())
        except (ray.exceptions.RayError, ValueError) as error:
            # A node that is gone never comes back under its ID.
            if node_id not in {node["NodeID"] for node in _nodes() if node["Alive"]}:
                return True
            if isinstance(error, (*_GONE, ValueError)) and node_id is not None:
                log.warning("shard %d has ended and is started again: %r", shard, error)
                self._actors.pop((shard, generation), None)
                self._create(shard, self._map.places[shard], False, node_id)
            return False

    def _publish(self, new: ShardMap, first: tuple[int, ...]) -> None:
        """Gives all shards a map that is in force. One that is away gets it later."""
        self._map = new
        others = [shard for shard in range(len(new.places)) if shard not in first]
        for shard in [*first, *others]:
            try:
                actor = self._actor(shard, new.places[shard].generation)
                self._order(actor, "install", self._epoch, new, timeout=30)
            except (ray.exceptions.RayError, Error, ValueError) as error:
                log.warning("shard %d did not get map %d: %r", shard, new.version, error)

    # Moves of buckets.

    def reshard(self, shards: int) -> list[dict[str, Any]]:
        """Moves buckets until each of `shards` shards has its share. Returns a report for each
        move."""
        if not 1 <= shards <= BUCKETS:
            raise InvalidArgumentError(f"`shards` must be from 1 to {BUCKETS}, not {shards}")
        with self._changing:
            if self._is_closed:
                raise ClosedError("the table is shut down")
            for shard in range(len(self._map.places), shards):
                self._add_shard(shard)
            moves = plan(self._map.owners, shards)
            return [self._move(source, target, buckets) for source, target, buckets in moves]

    def _add_shard(self, shard: int) -> None:
        place, node_id = self._place(shard)
        actor = self._create(shard, place, False, node_id)
        new = self._map.placed(self._next_version(), shard, place)
        self._order(actor, "install", self._epoch, new)
        self._publish(new, first=())

    def _move(self, source: int, target: int, buckets: NDArray[np.bool_]) -> dict[str, Any]:
        giver = self._actor(source, self._map.places[source].generation)
        taker = self._actor(target, self._map.places[target].generation)
        new, epoch = self._map.moved(self._next_version(), buckets, target), self._epoch
        began = time.monotonic()
        try:
            self._order(taker, "expect_foreign", epoch, self._map, timeout=LONG_ORDER_S)
            endpoint = self._endpoint(source)
            self._order(giver, "begin_move", epoch, buckets)
            # Not repeated: a shard that restarts has forgotten the changes.
            copied = _once(taker.copy.remote(endpoint, buckets), LONG_ORDER_S)
            _once(taker.catch_up.remote(endpoint, False), ORDER_S)
            frozen = time.monotonic()
            _once(giver.freeze.remote(epoch, buckets, new.version), ORDER_S)
            _once(taker.catch_up.remote(endpoint, True), ORDER_S)
        except Exception as error:
            self._cancel(source, taker)
            raise ServerError(
                f"buckets stay at shard {source}: their move to shard {target} failed: {error!r}"
            ) from error
        # The map is in force as soon as the taker has it on disk. If its answer is lost, it is
        # asked again: the order may be repeated.
        try:
            self._order(taker, "install", epoch, new)
        except Exception as error:
            # It may have the map nevertheless. No client does, and the next map overrides it.
            self._cancel(source, taker)
            raise ServerError(
                f"buckets stay at shard {source}: shard {target} did not take them: {error!r}"
            ) from error
        self._publish(new, first=(source,))
        paused = time.monotonic() - frozen
        if self._config.backups is not None:
            # A backup from before the move does not have the rows that came.
            self._backup(target)
        self._order(giver, "sweep", epoch, timeout=LONG_ORDER_S)
        self._order(taker, "sweep", epoch, timeout=LONG_ORDER_S)
        return {
            "source": source,
            "target": target,
            "buckets": int(buckets.sum()),
            "rows": copied,
            "pause_ms": paused * 1e3,
            "seconds": time.monotonic() - began,
        }

    def _cancel(self, source: int, taker: Any) -> None:
        """Ends a move with a map of the same owners. It is newer than that of the move, which the
        taker may have on disk, and the giver has it on disk before it serves again."""
        self._publish(replace(self._map, version=self._next_version()), first=(source,))
        try:
            self._order(taker, "sweep", self._epoch)
        except Exception as error:
            # The next move to it begins with a sweep.
            log.warning("sweeping after the move from shard %d: %r", source, error)

    # Watching.

    def _watch(self) -> None:
        """Remembers what was written, and restores shards whose node is gone."""
        while not self._is_closed:
            time.sleep(WATCH_S)
            for shard, place in enumerate(self._map.places):
                if self._is_closed:
                    return
                try:
                    self._watch_shard(shard, place.generation)
                except Exception as error:
                    log.info("watching shard %d: %r", shard, error)
                    self._restore_if_lost(shard, place.generation)

    def _restore_if_lost(self, shard: int, generation: int) -> None:
        try:
            self.restore(shard, generation)
        except Exception as error:
            log.warning("shard %d is lost: %r", shard, error)

    def _watch_shard(self, shard: int, generation: int) -> None:
        actor = self._actor(shard, generation)
        watched = self._watched.setdefault(shard, {})
        described = ray.get(actor.describe.remote(), timeout=10)
        if watched.get("token") not in (None, described["token"]):
            # A new process counts from 0.
            unsaved = watched.get("keys_written", 0) - watched.get("backed_up", 0)
            watched["earlier"] = watched.get("earlier", 0) + unsaved
            watched["backed_up"] = 0
        watched["token"] = described["token"]
        self._node_ids[shard, generation] = described["node_id"]
        watched["keys_written"] = described["keys_written"]
        state: ShardState = described["state"]
        is_behind = state.map is not None and state.map.version < self._map.version
        # A freeze whose move was cancelled while the shard was away.
        if (is_behind or state.frozen_version) and self._changing.acquire(blocking=False):
            try:
                self._order(actor, "install", self._epoch, self._map, timeout=30)
            finally:
                self._changing.release()

    def shutdown(self) -> None:
        """Closes all shards and ends their actors. The rows stay on disk."""
        self._is_closed = True
        with self._changing:
            for shard, place in enumerate(self._map.places):
                try:
                    self._end((shard, place.generation), self._actor(shard, place.generation))
                except ValueError:
                    pass


def _once(answer: Any, timeout: float) -> Any:
    return ray.get(answer, timeout=timeout)


remote_coordinator: Any = ray.remote(Coordinator)
