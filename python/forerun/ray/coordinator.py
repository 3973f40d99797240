"""The coordinator of a table: an actor that places shards and changes the map.

    ShardedTable ──map, names──> coordinator ──orders with its epoch──> shard, shard, shard ...
         └────────────── frames over TCP ──────────────────────────────────^

    move     taker: expect rows      giver: note changes      taker: copy, back up, catch up
             giver: freeze           taker: copy the last     taker: install the map  <- in force
             giver and others: install the map                taker: back up
                                                              giver: erase what it gave

    requests for these buckets    the giver serves until it freezes, and again if anything fails
                                  before the taker has written the map to its disk; meanwhile Moved
    freeze     for one of `FREEZES_S`; then the taker catches up and they try again. If the taker
               hangs just when it is to write the map, for `INSTALL_S`; then the move is cancelled
    backups    the taker's before the freeze, because older ones lack the rows that came, and after.
               A move deletes no older ones

    locks    _moving     one move or backup at a time, however long it takes
             _changing   taken after it, for a change of the map: a switch, a restoration

Ray restarts the actors, each shard on its node. All are detached: they live until
`ShardedTable.shutdown`. A coordinator that restarts asks the shards for the newest map. If none
runs, the nodes look at their disks. A shard whose node is gone is restored from its backup, also if
the coordinator was on that node. The orders of a coordinator have an epoch, and shards refuse those
of a former one.

All shards are asked at once how they are, and are repaired side by side. One that hangs delays
nothing but what needs that shard itself.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
from forerun.ray.catch_up import keys_within
from forerun.ray.connection import Endpoint
from forerun.ray.shard_actors import (
    GONE,
    LONG_ORDER_S,
    ORDER_S,
    Key,
    ShardActors,
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
from forerun.ray.shard_watch import PAUSE_S, ShardWatch
from forerun.ray.table_config import TableConfig
from forerun.ray.unsaved_keys import UnsavedKeys

log = logging.getLogger("forerun.ray")

# How long a shard may take to say how it is, if there is reason to believe that it is lost.
LOOK_S = 2.0
# How long buckets may be frozen for the copy of the last keys, in each attempt. Where everything is
# slow, because the machines have too much work, the first ones are too short.
FREEZES_S = (0.25, 0.25, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0)
# How long a shard may take for an order while buckets are frozen.
INSTALL_S = 5.0
# How long a client's call to restore a shard waits for another change. Each call that waits takes
# one of the actor's threads.
RESTORE_WAIT_S = 1.0


def coordinator_name(name: str) -> str:
    return f"{name}/coordinator"


class Condition(enum.Enum):
    """How a shard is."""

    # Or it does not answer, and its node is alive.
    RUNS = enum.auto()
    # Ray has given it up. Its rows are on the disk of its node.
    ENDED = enum.auto()
    LOST = enum.auto()


class LastCopy(NamedTuple):
    """What is copied while buckets are frozen."""

    take: int
    endpoint: Endpoint
    # How many keys may be left, and how long all of it may take.
    keys_max: int
    freeze_s: float


class Coordinator:
    """Places shards, and changes the map."""

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        self._moving = threading.Lock()
        self._changing = threading.Lock()
        self._lost: dict[tuple[str, int], tuple[int, int]] = {}
        self._recoveries: list[dict[str, Any]] = []
        self._unsaved: dict[Key, UnsavedKeys] = {}
        self._is_closed = False
        # What was logged last about each shard.
        self._logged: dict[int, str] = {}
        self._actors = ShardActors(config)
        self._order = self._actors.order
        self._shard_watch = ShardWatch(
            self._actors, self._current_shards, self._note, self._restore_if_lost
        )
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
        # A shard with frozen buckets takes no map that is older than that of its move.
        if places != newest.places or frozen > newest.version:
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
        with self._moving:
            made = [self._backup(shard, keep) for shard in range(len(self._map.places))]
            self._save_map(Path(self._config.backups))
            return made

    def _save_map(self, backups: Path) -> None:
        with self._changing:
            save_map(backups, self._config.name, self._map)

    def _backed_up_map(self) -> ShardMap | None:
        """The map beside the backups, for a table of which no node has anything. Its version is
        higher than any that a handle may have."""
        if self._config.backups is None:
            return None
        known = load_map(Path(self._config.backups), self._config.name)
        return None if known is None else replace(known, version=known.version + (1 << 32))

    def _backup(self, shard: int, keep: int | None = None) -> int:
        """Backs up a shard, and keeps the `keep` newest of its backups, or all."""
        generation = self._map.places[shard].generation
        actor = self._actors.get(shard, generation)
        try:
            # A large shard takes long.
            made = self._order(actor, "backup", keep, timeout=LONG_ORDER_S)
        except ray.exceptions.RayError as error:
            raise ServerError(f"shard {shard} is not backed up: {error}") from error
        unsaved = self._unsaved.setdefault((shard, generation), UnsavedKeys())
        unsaved.note_backup(made["token"], made["keys_written"])
        return int(made["backup"])

    def restore(self, shard: int, generation: int) -> ShardMap:
        """Replaces a shard that is lost by its last backup, on another node. `generation` is that
        of the lost one: of several callers the first restores it, and the others ask again."""
        self._check_open()
        if self._map.places[shard].generation != generation:
            return self._map
        # One that hangs must not keep others from being restored, so it is asked without the lock.
        condition = self._condition(shard, generation)
        if condition is Condition.RUNS or not self._changing.acquire(timeout=RESTORE_WAIT_S):
            return self._map
        try:
            self._check_open()
            if self._map.places[shard].generation != generation:
                return self._map
            if condition is Condition.ENDED:
                self._start_again(shard, generation)
                return self._map
            actor = self._restore(shard, generation)
        finally:
            self._changing.release()
        self._order(actor, "sweep", self._epoch, timeout=LONG_ORDER_S)
        return self._map

    def _restore(self, shard: int, generation: int) -> Any:
        """Returns the restored shard."""
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
        unsaved = self._unsaved.pop((shard, generation), UnsavedKeys())
        recovery = {
            "shard": shard,
            "backup": (described["restored"] or {}).get("backup"),
            "created_unix": (described["restored"] or {}).get("created_unix"),
            # What the coordinator knows: clients report what they miss, exactly.
            "keys_lost_at_least": unsaved.count,
        }
        of_shard = [known for known in self._recoveries if known["shard"] == shard]
        # From here on the restored shard counts.
        self._order(actor, "install", self._epoch, new, [*of_shard, recovery])
        self._recoveries.append(recovery)
        self._publish(new)
        save_map(Path(self._config.backups), self._config.name, new)
        return actor

    def _condition(self, shard: int, generation: int) -> Condition:
        """A shard is lost if its node is gone, or if its directory has vanished."""
        place = self._map.places[shard]
        try:
            actor = self._actors.get(shard, generation)
            state = ray.get(actor.describe.remote(), timeout=LOOK_S)["state"]
            is_empty = state.map is None and self._map.owned_by(shard).any()
            return Condition.LOST if is_empty else Condition.RUNS
        except (ray.exceptions.RayError, ValueError) as error:
            # A node that is gone never comes back under its ID.
            node_id = self._actors.node_ids.get((shard, generation), place.node_id)
            if node_id not in alive_nodes():
                return Condition.LOST
            if isinstance(error, (*GONE, ValueError)):
                log.warning("shard %d has ended: %r", shard, error)
                return Condition.ENDED
            return Condition.RUNS

    def _start_again(self, shard: int, generation: int) -> None:
        place = self._map.places[shard]
        node_id = self._actors.node_ids.get((shard, generation), place.node_id)
        self._actors.forget((shard, generation))
        self._actors.create(shard, place, False, node_id)

    def _publish(self, new: ShardMap, first: int | None = None) -> float:
        """Gives all shards a map that is in force, `first` before the others. One that is away, or
        hangs, gets it later. Returns when `first` had it."""
        self._map = new
        shards = list(range(len(new.places)))
        if first is not None:
            shards.remove(first)
            self._actors.install(self._epoch, new, [first])
        at = time.monotonic()
        self._actors.install(self._epoch, new, shards)
        return at

    # Moves of buckets.

    def reshard(self, shards: int) -> list[dict[str, Any]]:
        """Moves buckets until each of `shards` shards has its share. Returns a report for each
        move."""
        if not 1 <= shards <= BUCKETS:
            raise InvalidArgumentError(f"`shards` must be from 1 to {BUCKETS}, not {shards}")
        with self._moving:
            for shard in range(len(self._map.places), shards):
                with self._changing:
                    self._check_open()
                    self._add_shard(shard)
            moves = plan(self._map.owners, shards)
            return [self._move(source, target, buckets) for source, target, buckets in moves]

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the table is shut down")

    def _add_shard(self, shard: int) -> None:
        place = self._actors.place(shard)
        self._actors.create(shard, place, False, place.node_id)
        self._actors.await_start(shard, place, False, place.node_id)
        actor = self._actors.get(shard, place.generation)
        new = self._map.placed(self._next_version(), shard, place)
        self._order(actor, "install", self._epoch, new)
        self._publish(new)

    def _move(self, source: int, target: int, buckets: NDArray[np.bool_]) -> dict[str, Any]:
        self._check_open()
        places = self._map.places
        giver = self._actors.get(source, places[source].generation)
        taker = self._actors.get(target, places[target].generation)
        began = time.monotonic()
        try:
            copied, take, endpoint = self._copy(source, target, buckets)
            pause_s = self._switch(source, target, buckets, take, endpoint)
        except Exception as error:
            with self._changing:
                self._cancel(source)
            try:
                self._order(taker, "sweep", self._epoch)
            except Exception as failed:
                # The next move to it begins with a sweep.
                log.warning("sweeping shard %d after a cancelled move: %r", target, failed)
            raise ServerError(
                f"buckets stay at shard {source}: their move to shard {target} failed: {error!r}"
            ) from error
        try:
            if self._config.backups is not None:
                self._back_up_moved(target, Path(self._config.backups))
        finally:
            for actor in (giver, taker):
                self._order(actor, "sweep", self._epoch, timeout=LONG_ORDER_S)
        return {
            "source": source,
            "target": target,
            "buckets": int(buckets.sum()),
            "rows": copied,
            "pause_ms": pause_s * 1e3,
            "seconds": time.monotonic() - began,
        }

    def _copy(
        self, source: int, target: int, buckets: NDArray[np.bool_]
    ) -> tuple[int, int, Endpoint]:
        """Copies the rows of some buckets while their shard serves them. A map that either shard
        gets meanwhile, because another one is restored, ends the move."""
        current, epoch = self._map, self._epoch
        giver = self._actors.get(source, current.places[source].generation)
        taker = self._actors.get(target, current.places[target].generation)
        # So that nobody has a reason to give them a map during the move.
        for actor in (giver, taker):
            self._order(actor, "install", epoch, current)
        take = self._order(taker, "expect_foreign", epoch, current, timeout=LONG_ORDER_S)
        endpoint: Endpoint = self._order(giver, "endpoint")
        self._order(giver, "begin_move", epoch, buckets)
        # Not repeated: a shard that restarts has forgotten the changes.
        copied = _once(taker.copy.remote(take, endpoint, buckets), LONG_ORDER_S)
        if self._config.backups is not None:
            # From its first moment as their owner, the taker can be restored with these rows.
            self._backup(target)
        return copied, take, endpoint

    def _switch(
        self,
        source: int,
        target: int,
        buckets: NDArray[np.bool_],
        take: int,
        endpoint: Endpoint,
    ) -> float:
        """Copies what was written since, and puts the new map in force. Returns for how long nobody
        served the buckets."""
        taker = self._actors.get(target, self._map.places[target].generation)
        for freeze_s in FREEZES_S:
            caught_up = taker.catch_up.remote(take, endpoint)
            take, keys_per_s = _once(caught_up, LONG_ORDER_S)
            last = LastCopy(take, endpoint, keys_within(freeze_s / 2, keys_per_s), freeze_s)
            with self._changing:
                pause_s = self._freeze(source, target, buckets, last)
            if pause_s is not None:
                return pause_s
        raise ServerError(
            f"the last keys could not be copied within {FREEZES_S[-1]} s, nor sooner in "
            f"{len(FREEZES_S) - 1} attempts before"
        )

    def _freeze(
        self, source: int, target: int, buckets: NDArray[np.bool_], last: LastCopy
    ) -> float | None:
        """Copies the last changes while nobody serves the buckets, and puts the new map in force.
        Returns for how long nobody served them. `None`: it would take too long, so their shard
        serves them again."""
        new, frozen = self._map.moved(self._next_version(), buckets, target), time.monotonic()
        giver = self._actors.get(source, new.places[source].generation)
        taker = self._actors.get(target, new.places[target].generation)
        version, until = new.version, frozen + last.freeze_s
        try:
            try:
                drain_s = last.freeze_s / 2
                order = giver.freeze.remote(self._epoch, buckets, version, last.keys_max, drain_s)
                if not _once(order, last.freeze_s):
                    return None
                order = taker.copy_last.remote(last.take, last.endpoint)
                _once(order, max(until - time.monotonic(), 0.0))
            except ray.exceptions.GetTimeoutError:
                self._order(giver, "thaw", self._epoch, version, timeout=INSTALL_S)
                return None
            # The map is in force as soon as the taker has it on disk. If its answer is lost, it is
            # asked again: the order may be repeated. If it cannot be asked, it may have the map
            # nevertheless; no client does, and the next map overrides it.
            self._order(taker, "install", self._epoch, new, timeout=INSTALL_S)
        except Exception:
            # At once, so that no restoration comes first.
            self._cancel(source)
            raise
        return self._publish(new, first=source) - frozen

    def _cancel(self, source: int) -> None:
        """Ends a move with a map of the same owners. It is newer than that of the move, which the
        taker may have on disk, and the giver has it on disk before it serves again."""
        self._publish(replace(self._map, version=self._next_version()), first=source)

    def _back_up_moved(self, target: int, backups: Path) -> None:
        """Backs up what the backup during a move does not have: writes until its end, and the
        map."""
        try:
            self._backup(target)
            self._save_map(backups)
        except Exception as error:
            raise ServerError(
                f"the buckets are at shard {target}, but their last writes are not backed up: "
                f"{error!r}"
            ) from error

    # Watching.

    def _watch(self) -> None:
        """Remembers what was written, and restores shards whose node is gone."""
        while not self._is_closed:
            time.sleep(PAUSE_S)
            try:
                self._shard_watch.round()
            except Exception as error:
                log.warning("watching the shards: %r", error)

    def _current_shards(self) -> list[Key]:
        return [(shard, place.generation) for shard, place in enumerate(self._map.places)]

    def _note(self, key: Key, described: dict[str, Any]) -> None:
        """Takes the description of a shard."""
        self._actors.node_ids[key] = described["node_id"]
        unsaved = self._unsaved.setdefault(key, UnsavedKeys())
        unsaved.note_written(described["token"], described["keys_written"])
        state: ShardState = described["state"]
        if state.map is None and self._map.owned_by(key[0]).any():
            raise NotFoundError("its directory has vanished")
        if self._needs_map(state):
            self._shard_watch.repair(key, self._bring_up_to_date)

    def _needs_map(self, state: ShardState) -> bool:
        is_behind = state.map is not None and state.map.version < self._map.version
        # A freeze whose move was cancelled while the shard was away.
        return is_behind or state.frozen_version > 0

    def _bring_up_to_date(self, key: Key) -> None:
        """Gives a shard the map that it has missed, unless the map changes now."""
        if not self._changing.acquire(blocking=False):
            return
        try:
            described = ray.get(self._actors.get(*key).describe.remote(), timeout=LOOK_S)
            if self._needs_map(described["state"]):
                self._actors.install(self._epoch, self._map, [key[0]])
        except (ray.exceptions.RayError, ValueError) as error:
            log.info("shard %d did not get map %d: %r", key[0], self._map.version, error)
        finally:
            self._changing.release()

    def _restore_if_lost(self, key: Key) -> None:
        shard, generation = key
        if self._is_closed:
            return
        try:
            self.restore(shard, generation)
            self._logged.pop(shard, None)
        except Exception as error:
            # Not again and again: it is tried every second.
            if not self._is_closed and self._logged.get(shard) != str(error):
                self._logged[shard] = str(error)
                log.warning("shard %d is lost: %r", shard, error)

    def unsaved_keys(self, shard: int) -> int:
        """How many keys of a shard were written since its last backup, as of the last look at
        it."""
        key = (shard, self._map.places[shard].generation)
        return self._unsaved.setdefault(key, UnsavedKeys()).count

    def shutdown(self) -> None:
        """Closes all shards and ends their actors. The rows stay on disk."""
        self._is_closed = True
        with self._moving, self._changing:
            for shard, place in enumerate(self._map.places):
                try:
                    actor = self._actors.get(shard, place.generation)
                    self._actors.end((shard, place.generation), actor)
                except ValueError:
                    pass


def _once(answer: Any, timeout: float) -> Any:
    return ray.get(answer, timeout=timeout)


remote_coordinator: Any = ray.remote(Coordinator)
