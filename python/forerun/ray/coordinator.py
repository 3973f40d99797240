"""The coordinator of a table: an actor that places shards and changes the map.

    ShardedTable ──map, names──> coordinator ──orders with its epoch──> shard, shard, shard ...
         └────────────── frames over TCP ──────────────────────────────────^

    move     taker: expect rows      giver: note changes      taker: copy, catch up, back up
             giver: freeze           taker: catch up          taker: install the map  <- in force
             giver and others: install the map                taker: back up
                                                              giver: erase what it gave

Ray restarts the actors, each shard on its node. All are detached: they live until
`ShardedTable.shutdown`. A coordinator that restarts asks the shards for the newest map. If none
runs, the nodes look at their disks. A shard whose node is gone is restored from its backup, also if
the coordinator was on that node. The orders of a coordinator have an epoch, and shards refuse those
of a former one.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from forerun.errors import (
    ClosedError,
    CorruptionError,
    Error,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
)
from forerun.ray.connection import Endpoint
from forerun.ray.shard_actors import (
    GONE,
    LONG_ORDER_S,
    ORDER_S,
    ShardActors,
    TableConfig,
    alive_nodes,
)
from forerun.ray.shard_map import (
    BUCKETS,
    Place,
    ShardMap,
    ShardState,
    even_owners,
    load_map,
    plan,
    save_map,
)

log = logging.getLogger("forerun.ray")

# How often the coordinator asks shards what was written.
WATCH_S = 1.0
# How long a client's call to restore a shard waits for another change. Each call that waits takes
# one of the actor's threads.
RESTORE_WAIT_S = 1.0


def coordinator_name(name: str) -> str:
    return f"{name}/coordinator"


class Coordinator:
    """Places shards, and changes the map."""

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        self._changing = threading.Lock()
        self._lost: dict[tuple[str, int], tuple[int, int]] = {}
        self._recoveries: list[dict[str, Any]] = []
        self._watched: dict[int, dict[str, Any]] = {}
        self._is_closed = False
        # What was logged last about each shard.
        self._logged: dict[int, str] = {}
        self._actors = ShardActors(config)
        self._order = self._actors.order
        self._epoch = 0
        self._last_version = 0
        try:
            self._map = self._start()
        except BaseException:
            for actor in self._actors.made:
                ray.kill(actor, no_restart=True)
            raise
        self._actors.made.clear()
        threading.Thread(target=self._watch, name="forerun-watch", daemon=True).start()

    def _start(self) -> ShardMap:
        """Finds the newest map of the shards that run, or of those on disk, or makes a new one."""
        actors = self._actors.existing()
        states = self._actors.states(actors)
        if not states:
            actors = self._actors.open_from_disks(self._backed_up_map() is not None)
            states = self._actors.states(actors)
        self._epoch = 1 + max((state.epoch for state in states.values()), default=0)
        maps = [state.map for state in states.values() if state.map is not None]
        newest = max(maps, key=lambda known: known.version, default=None) or self._backed_up_map()
        if newest is None:
            return self._first_map(actors)
        frozen = max((state.frozen_version for state in states.values()), default=0)
        self._last_version = max(newest.version, frozen)
        for shard, place in enumerate(newest.places):
            if (shard, place.generation) not in actors:
                actor = self._actors.start_missing(shard, place)
                if actor is not None:
                    actors[shard, place.generation] = actor
        places = self._actors.places_now(newest)
        if places != newest.places:
            newest = replace(newest, version=self._next_version(), places=places)
        current = {(shard, place.generation) for shard, place in enumerate(newest.places)}
        for key in current & actors.keys():
            try:
                described = self._order(actors[key], "describe", timeout=LONG_ORDER_S)
                state: ShardState = described["state"]
                self._recoveries += state.recoveries
                if state.map is None and newest.owned_by(key[0]).any():
                    # Its directory has vanished. The one who watches finds that, too.
                    log.warning("shard %d has no rows on its node", key[0])
                    continue
                # This also ends a move that the former coordinator did not finish.
                self._order(actors[key], "install", self._epoch, newest, timeout=LONG_ORDER_S)
            except (ray.exceptions.RayError, Error) as error:
                # Its disk is full, for example. The one who watches tries again.
                log.warning("shard %d did not get map %d: %r", key[0], newest.version, error)
        for key in actors.keys() - current:
            # Of a growth that did not end, or older than a restored shard.
            self._actors.end(key, actors[key])
        return newest

    def _next_version(self) -> int:
        """A version that no map has, not even one of a change that failed."""
        self._last_version += 1
        return self._last_version

    def _first_map(self, actors: dict[tuple[int, int], Any]) -> ShardMap:
        places = []
        for shard in range(len(actors)):
            described = self._order(actors[shard, 0], "describe")
            places.append(Place(0, described["node"], described["node_id"]))
        seed = int.from_bytes(np.random.default_rng().bytes(8), "little")
        first = ShardMap(self._next_version(), seed, even_owners(len(actors)), tuple(places))
        for actor in actors.values():
            self._order(actor, "install", self._epoch, first)
        return first

    def _endpoint(self, shard: int) -> Endpoint:
        place = self._map.places[shard]
        endpoint: Endpoint = self._order(self._actors.get(shard, place.generation), "endpoint")
        return endpoint

    # Calls of clients.

    def describe(self) -> tuple[TableConfig, ShardMap]:
        return self._config, self._map

    def current_map(self) -> ShardMap:
        return self._map

    def report_lost(self, client: str, shard: int, writes: int, keys: int) -> None:
        """All of a client's acknowledged writes that a restored shard does not have. A report may
        be repeated."""
        before = self._lost.get((client, shard), (0, 0))
        self._lost[client, shard] = (max(before[0], writes), max(before[1], keys))

    def stats(self, reports: list[tuple[str, int, int, int]]) -> dict[str, Any]:
        """`reports`: those of the asking handle, which a former coordinator may have had."""
        for report in reports:
            self.report_lost(*report)
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
        try:
            # Refuses a directory of another table.
            self._backed_up_map()
        except CorruptionError as error:
            log.warning("the map beside the backups is replaced: %s", error)
        with self._changing:
            made = [self._backup(shard, keep) for shard in range(len(self._map.places))]
            save_map(Path(self._config.backups), self._config.name, self._map)
            return made

    def _backed_up_map(self) -> ShardMap | None:
        """The map beside the backups, for a table of which no node has anything. Its version is
        higher than any that a handle may have."""
        if self._config.backups is None:
            return None
        known = load_map(Path(self._config.backups), self._config.name)
        return None if known is None else replace(known, version=known.version + (1 << 32))

    def _backup(self, shard: int, keep: int | None = None) -> int:
        """Backs up a shard, and keeps the `keep` newest of its backups, or all."""
        actor = self._actors.get(shard, self._map.places[shard].generation)
        # A large shard takes long.
        made = self._order(actor, "backup", keep, timeout=LONG_ORDER_S)
        watched = self._watched.setdefault(shard, {})
        watched["backed_up"] = made["keys_written"]
        watched["keys_written"] = max(watched.get("keys_written", 0), made["keys_written"])
        watched["earlier"] = 0
        return int(made["backup"])

    def restore(self, shard: int, generation: int) -> ShardMap:
        """Replaces a shard that is lost by its last backup, on another node. `generation` is that
        of the lost one: of several callers the first restores it, and the others ask again."""
        if not self._changing.acquire(timeout=RESTORE_WAIT_S):
            return self._map
        try:
            return self._restore(shard, generation)
        finally:
            self._changing.release()

    def _restore(self, shard: int, generation: int) -> ShardMap:
        if self._is_closed:
            raise ClosedError("the table is shut down")
        if self._map.places[shard].generation != generation:
            return self._map
        if not self._is_lost(shard, generation):
            return self._map
        if self._config.backups is None:
            raise ServerError(f"shard {shard} is lost with its node, and the table has no backups")
        former = self._actors.forget((shard, generation))
        if former is not None:
            ray.kill(former, no_restart=True)
        place = replace(self._actors.place(shard), generation=generation + 1)
        actor = self._actors.create(shard, place, True, place.node_id)
        try:
            described = self._actors.await_start(shard, place, True, place.node_id)
        except (ray.exceptions.RayError, Error) as error:
            ray.kill(actor, no_restart=True)
            self._actors.forget((shard, place.generation))
            raise ServerError(f"shard {shard} cannot be restored: {error}") from error
        actor = self._actors.get(shard, place.generation)
        new = self._map.placed(self._next_version(), shard, place)
        watched = self._watched.pop(shard, {})
        recovery = {
            "shard": shard,
            "backup": (described["restored"] or {}).get("backup"),
            "created_unix": (described["restored"] or {}).get("created_unix"),
            # What the coordinator knows: clients report what they miss, exactly.
            "keys_lost_at_least": watched.get("earlier", 0)
            + watched.get("keys_written", 0)
            - watched.get("backed_up", 0),
        }
        of_shard = [known for known in self._recoveries if known["shard"] == shard]
        # From here on the restored shard counts.
        self._order(actor, "install", self._epoch, new, [*of_shard, recovery])
        self._recoveries.append(recovery)
        self._publish(new, first=())
        self._order(actor, "sweep", self._epoch, timeout=LONG_ORDER_S)
        save_map(Path(self._config.backups), self._config.name, new)
        return new

    def _is_lost(self, shard: int, generation: int) -> bool:
        """Whether a shard's node is gone, or its directory has vanished. A shard that has ended for
        another reason is started again: its rows are on the disk."""
        place = self._map.places[shard]
        node_id = self._actors.node_ids.get((shard, generation), place.node_id)
        try:
            actor = self._actors.get(shard, generation)
            state = ray.get(actor.describe.remote(), timeout=10)["state"]
            return state.map is None and bool(self._map.owned_by(shard).any())
        except (ray.exceptions.RayError, ValueError) as error:
            # A node that is gone never comes back under its ID.
            if node_id not in alive_nodes():
                return True
            if isinstance(error, (*GONE, ValueError)):
                log.warning("shard %d has ended and is started again: %r", shard, error)
                self._actors.forget((shard, generation))
                self._actors.create(shard, place, False, node_id)
            return False

    def _publish(self, new: ShardMap, first: tuple[int, ...]) -> None:
        """Gives all shards a map that is in force. One that is away gets it later."""
        self._map = new
        others = [shard for shard in range(len(new.places)) if shard not in first]
        for shard in [*first, *others]:
            try:
                actor = self._actors.get(shard, new.places[shard].generation)
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
        place = self._actors.place(shard)
        self._actors.create(shard, place, False, place.node_id)
        self._actors.await_start(shard, place, False, place.node_id)
        actor = self._actors.get(shard, place.generation)
        new = self._map.placed(self._next_version(), shard, place)
        self._order(actor, "install", self._epoch, new)
        self._publish(new, first=())

    def _move(self, source: int, target: int, buckets: NDArray[np.bool_]) -> dict[str, Any]:
        giver = self._actors.get(source, self._map.places[source].generation)
        taker = self._actors.get(target, self._map.places[target].generation)
        new, epoch = self._map.moved(self._next_version(), buckets, target), self._epoch
        began = time.monotonic()
        try:
            take = self._order(taker, "expect_foreign", epoch, self._map, timeout=LONG_ORDER_S)
            endpoint = self._endpoint(source)
            self._order(giver, "begin_move", epoch, buckets)
            # Not repeated: a shard that restarts has forgotten the changes.
            copied = _once(taker.copy.remote(take, endpoint, buckets), LONG_ORDER_S)
            _once(taker.catch_up.remote(take, endpoint, False), ORDER_S)
            if self._config.backups is not None:
                # From its first moment as their owner, the taker can be restored with these rows.
                self._backup(target)
            frozen = time.monotonic()
            _once(giver.freeze.remote(epoch, buckets, new.version), ORDER_S)
            _once(taker.catch_up.remote(take, endpoint, True), ORDER_S)
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
        try:
            if self._config.backups is not None:
                self._back_up_moved(target, Path(self._config.backups))
        finally:
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

    def _back_up_moved(self, target: int, backups: Path) -> None:
        """Backs up what the backup during a move does not have: writes until its end, and the
        map."""
        try:
            self._backup(target)
            save_map(backups, self._config.name, self._map)
        except Exception as error:
            raise ServerError(
                f"the buckets are at shard {target}, but their last writes are not backed up: "
                f"{error!r}"
            ) from error

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
            self._logged.pop(shard, None)
        except Exception as error:
            # Not again and again: it is tried every second.
            if self._logged.get(shard) != str(error):
                self._logged[shard] = str(error)
                log.warning("shard %d is lost: %r", shard, error)

    def _watch_shard(self, shard: int, generation: int) -> None:
        actor = self._actors.get(shard, generation)
        watched = self._watched.setdefault(shard, {})
        described = ray.get(actor.describe.remote(), timeout=10)
        if watched.get("token") not in (None, described["token"]):
            # A new process counts from 0.
            unsaved = watched.get("keys_written", 0) - watched.get("backed_up", 0)
            watched["earlier"] = watched.get("earlier", 0) + unsaved
            watched["backed_up"] = 0
        watched["token"] = described["token"]
        self._actors.node_ids[shard, generation] = described["node_id"]
        watched["keys_written"] = described["keys_written"]
        state: ShardState = described["state"]
        if state.map is None and self._map.owned_by(shard).any():
            raise NotFoundError("its directory has vanished")
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
                    actor = self._actors.get(shard, place.generation)
                    self._actors.end((shard, place.generation), actor)
                except ValueError:
                    pass


def _once(answer: Any, timeout: float) -> Any:
    return ray.get(answer, timeout=timeout)


remote_coordinator: Any = ray.remote(Coordinator)
