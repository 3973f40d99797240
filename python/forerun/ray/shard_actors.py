"""The actors of a table's shards: where they are made, found again, and given orders.

    a new table             a shard for each node in turn
    the cluster restarted   nodes look at their disks; each shard starts where its rows are
    a coordinator restarts  shards that run are found by name; one whose node is gone is restored

`docs/guide/ray.md` says what is promised when a node is lost.
"""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forerun.errors import CorruptionError, Error, NotFoundError, ServerError
from forerun.ray.disk_scan import Found, holders, newest_map, shards_on_disk
from forerun.ray.shard_actor import remote_shard
from forerun.ray.shard_map import Place, ShardMap, ShardState
from forerun.ray.table_config import ShardConfig, TableConfig

log = logging.getLogger("forerun.ray")

# How long an order to a shard may take before the coordinator gives up.
ORDER_S = 120.0
# How long a node may take to look at its disk. Ray starts a process for it, which takes minutes on
# a machine with far too much work.
SCAN_S = 600.0
# How long a new map waits for shards to take it. One that takes it later is no danger.
PUBLISH_S = 10.0
# An order that reads or copies all rows of a shard.
LONG_ORDER_S = 24 * 3600.0
# How long a node may be unknown to others after it has joined the cluster.
JOIN_S = 30.0
# Ray does not restart such an actor.
GONE = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError)

# A shard and its generation.
Key = tuple[int, int]


def shard_name(name: str, shard: int, generation: int) -> str:
    return f"{name}/shard-{shard:04}/{generation}"


def _all_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster, dead ones included."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def alive_nodes() -> dict[str, str]:
    """The addresses of the nodes that are alive, by ID."""
    alive = (node for node in _all_nodes() if node["Alive"])
    return {str(node["NodeID"]): str(node["NodeManagerAddress"]) for node in alive}


class ShardActors:
    """The actors of a table's shards, for its coordinator."""

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.node_ids: dict[Key, str] = {}
        self._actors: dict[Key, Any] = {}
        # Those that were made since the list was cleared.
        self.made: list[Any] = []

    def _nodes(self) -> dict[str, str]:
        """The addresses of the nodes that may have shards, by ID."""
        nodes, wanted = alive_nodes(), self.config.nodes
        if wanted is not None:
            nodes = {n: address for n, address in nodes.items() if n in wanted or address in wanted}
        if not nodes:
            raise NotFoundError("none of the table's nodes is alive")
        return nodes

    def get(self, shard: int, generation: int) -> Any:
        """The handle of a shard, which may be about to restart."""
        key = (shard, generation)
        if key not in self._actors:
            name = shard_name(self.config.name, shard, generation)
            self._actors[key] = ray.get_actor(name, namespace=self.config.namespace)
        return self._actors[key]

    def forget(self, key: Key) -> Any:
        """Removes a handle and returns it, if there was one."""
        return self._actors.pop(key, None)

    def _shard_config(self, shard: int, generation: int, restores: bool) -> ShardConfig:
        config = self.config
        return ShardConfig(
            table=config.name,
            shard=shard,
            generation=generation,
            dim=config.dim,
            dtype=config.dtype,
            path=config.path,
            bind=config.bind,
            connections_max=config.connections_max,
            backups=config.backups,
            restores=restores,
            options=config.options,
        )

    def create(self, shard: int, place: Place, restores: bool, node_id: str) -> Any:
        config = self.config
        shard_config = self._shard_config(shard, place.generation, restores)
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
        self.made.append(actor)
        self.node_ids[shard, place.generation] = node_id
        return actor

    def await_start(
        self, shard: int, place: Place, restores: bool, node_id: str
    ) -> dict[str, Any]:
        """Waits until a shard that was created answers. Returns its description.

        Ray lets any node forward the creation of an actor. One that does not know yet of the node
        where the actor belongs calls it unschedulable, for good, so it is created again."""
        deadline = time.monotonic() + JOIN_S
        while True:
            actor = self.get(shard, place.generation)
            try:
                described: dict[str, Any] = self.order(actor, "describe", timeout=LONG_ORDER_S)
                return described
            except ray.exceptions.ActorUnschedulableError:
                if node_id not in alive_nodes() or time.monotonic() >= deadline:
                    raise
                ray.kill(actor, no_restart=True)
                self.forget((shard, place.generation))
                time.sleep(0.2)
                self.create(shard, place, restores, node_id)

    def place(self, shard: int, address: str | None = None) -> Place:
        """A node for a shard: one with this address, or the one whose turn it is."""
        nodes = self._nodes()
        node_id = _turn(shard, [n for n, of in nodes.items() if of == address] or list(nodes))
        return Place(0, nodes[node_id], node_id)

    def existing(self) -> dict[Key, Any]:
        """The shards that run already, if a coordinator was here before."""
        prefix = f"{self.config.name}/shard-"
        found = {}
        for actor in ray.util.list_named_actors(all_namespaces=True):
            name, namespace = actor["name"], actor["namespace"]
            if namespace == self.config.namespace and name.startswith(prefix):
                number, generation = map(int, name[len(prefix) :].split("/"))
                try:
                    found[number, generation] = self.get(number, generation)
                except ValueError:
                    # It has ended just now.
                    continue
        return found

    def states(self, actors: dict[Key, Any]) -> dict[Key, ShardState]:
        """What shards have on disk. Those that are gone are removed from `actors`."""
        states = {}
        for key, actor in list(actors.items()):
            try:
                # A shard that does not answer may have the newest map.
                described = self.order(actor, "describe", timeout=LONG_ORDER_S)
            except GONE as error:
                # If the map needs it, it is made again or restored.
                log.warning("shard %d, generation %d, is gone: %r", *key, error)
                ray.kill(actor, no_restart=True)
                del actors[key], self._actors[key]
                continue
            running: ShardConfig = described["config"]
            running.check_same(self._shard_config(*key, running.restores))
            states[key] = described["state"]
            self.node_ids[key] = described["node_id"]
        return states

    def open_from_disks(self, has_backups: bool) -> dict[Key, Any]:
        """Starts the shards that the nodes have on their disks, or those of a new table. Starts
        nothing if no node has anything and there are backups."""
        found = self._scan()
        newest = newest_map(found)
        made: dict[Key, Any] = {}
        if newest is not None:
            nodes = self._nodes()
            for shard, place in enumerate(newest.places):
                has = [n for n in holders(found, shard, place.generation) if n in nodes]
                # The node where it was, if there are several.
                has = [n for n in has if nodes[n] == place.node] or has
                if has:
                    key = (shard, place.generation)
                    made[key] = self.create(shard, place, False, _turn(shard, has))
        elif not has_backups:
            self._check_new(found)
            for shard in range(self.config.shards):
                place = self.place(shard)
                made[shard, 0] = self.create(shard, place, False, place.node_id)
        for shard, generation in made:
            node_id = self.node_ids[shard, generation]
            try:
                self.await_start(shard, Place(generation, "", node_id), False, node_id)
            except GONE as error:
                # Not restored: its rows are there.
                raise ServerError(f"shard {shard} cannot be started: {error}") from error
        return {key: self.get(*key) for key in made}

    def _check_new(self, found: dict[str, Found]) -> None:
        """Refuses to make an empty table in place of one that is lost."""
        for node, of_node in found.items():
            for (shard, generation), state in of_node.items():
                if state is None:
                    raise CorruptionError(
                        f"{self.config.path} on node {node} has shard {shard}, generation "
                        f"{generation}, whose shard.json cannot be read, and no node has a map"
                    )
        with warnings.catch_warnings():
            # It calls a deprecated function of Ray itself.
            warnings.simplefilter("ignore")
            has_restarted = ray.get_runtime_context().was_current_actor_reconstructed
        if has_restarted:
            raise ServerError(f"all shards of table {self.config.name!r} are lost with their nodes")

    def _scan(self) -> dict[str, Found]:
        """What each node has on its disk."""
        look = ray.remote(num_cpus=0)(shards_on_disk)
        answers = {}
        for node_id in self._nodes():
            strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
            answers[node_id] = look.options(scheduling_strategy=strategy).remote(
                self.config.path, self.config.name
            )
        try:
            return dict(zip(answers, ray.get(list(answers.values()), timeout=SCAN_S)))
        except ray.exceptions.RayError as error:
            # It may have the newest map.
            raise ServerError(f"a node cannot look at its disk: {error}") from error

    def start_missing(self, shard: int, place: Place) -> Any:
        """Starts a shard of the map that does not run. `None` if it cannot be started now, or if it
        is to be restored."""
        node_id = place.node_id
        if node_id not in alive_nodes():
            if self.config.backups is not None:
                log.warning("shard %d is lost with its node", shard)
                return None
            node_id = self.place(shard, place.node).node_id
        self.create(shard, place, False, node_id)
        try:
            self.await_start(shard, place, False, node_id)
        except GONE as error:
            # The one who watches tries again.
            log.warning("shard %d cannot be started: %r", shard, error)
            return None
        return self.get(shard, place.generation)

    def places_now(self, known: ShardMap) -> tuple[Place, ...]:
        """The places of a map's shards, which have other nodes if the cluster has started again."""
        nodes, places = alive_nodes(), []
        for shard, place in enumerate(known.places):
            node_id = self.node_ids.get((shard, place.generation), "")
            if node_id in nodes:
                place = replace(place, node=nodes[node_id], node_id=node_id)
            places.append(place)
        return tuple(places)

    def end(self, key: Key, actor: Any) -> None:
        try:
            ray.get(actor.close.remote(), timeout=30)
        except Exception as error:
            log.info("shard %s did not close: %r", key, error)
        ray.kill(actor, no_restart=True)
        self._actors.pop(key, None)

    def order(self, actor: Any, method: str, *args: Any, timeout: float = ORDER_S) -> Any:
        """Calls a shard, and again while it restarts. All orders may be repeated."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return ray.get(getattr(actor, method).remote(*args), timeout=max(left, 0.1))
            except GONE:
                raise
            except ray.exceptions.RayActorError as error:
                if left <= 0:
                    raise ServerError(f"a shard did not come back: {error}") from error
                time.sleep(0.1)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Error) else error

    def install(self, epoch: int, new: ShardMap, shards: list[int]) -> None:
        """Gives shards a map. One that is away, or hangs, gets it later."""
        installed: dict[Any, int] = {}
        for shard in shards:
            try:
                actor = self.get(shard, new.places[shard].generation)
                installed[actor.install.remote(epoch, new)] = shard
            except (ray.exceptions.RayError, ValueError) as error:
                log.warning("shard %d did not get map %d: %r", shard, new.version, error)
        if not installed:
            return
        done, late = ray.wait(list(installed), num_returns=len(installed), timeout=PUBLISH_S)
        for answer in done:
            try:
                ray.get(answer, timeout=ORDER_S)
            except ray.exceptions.RayError as error:
                shard = installed[answer]
                log.warning("shard %d did not get map %d: %r", shard, new.version, error)
        for answer in late:
            log.warning("shard %d has not taken map %d yet", installed[answer], new.version)


def _turn(shard: int, nodes: list[str]) -> str:
    """The node of a shard, of several that are as good."""
    return sorted(nodes)[shard % len(nodes)]
