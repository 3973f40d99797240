"""The orders of a coordinator, and what the disks of the nodes have, without a cluster."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from forerun import errors

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'forerun[ray]'")

import forerun  # noqa: E402
from forerun.ray import coordinator as coordinator_module  # noqa: E402
from forerun.ray import shard_actors  # noqa: E402
from forerun.ray.coordinator import Coordinator  # noqa: E402
from forerun.ray.disk_scan import holders, newest_map, shards_on_disk  # noqa: E402
from forerun.ray.frames import Op  # noqa: E402
from forerun.ray.session import Session  # noqa: E402
from forerun.ray.shard_actor import ShardActor  # noqa: E402
from forerun.ray.shard_map import (  # noqa: E402
    BUCKETS,
    Place,
    ShardMap,
    ShardState,
    even_owners,
    load_map,
    save_map,
)
from ray_local import DIM, Remote, Table, call, ones  # noqa: E402


@pytest.fixture
def coordinated(tmp_path, monkeypatch):
    """A coordinator of two shards in this process, and their table. Shard 0 has all buckets."""
    settings = {"backups": str(tmp_path / "backups")}
    table = Table(tmp_path / "shards", 1)
    table.close()
    table.actors = [Table.actor(tmp_path / "shards", shard, **settings) for shard in range(2)]
    places = (Place(0, "here"), Place(0, "here"))
    table.map = ShardMap(2, 5, even_owners(1), places)
    for actor in table.actors:
        actor.install(1, table.map)
    monkeypatch.setattr(coordinator_module.ray, "get", lambda answer, timeout: answer())
    wait = lambda answers, num_returns, timeout: (answers, [])  # noqa: E731
    monkeypatch.setattr(coordinator_module.ray, "wait", wait)
    # Ray's own would start a cluster.
    context = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    config = shard_actors.TableConfig(
        "t", "n", DIM, "int64", 2, str(tmp_path), "127.0.0.1", settings["backups"], None, 0
    )
    actors = shard_actors.ShardActors(config)
    monkeypatch.setattr(actors, "get", lambda shard, _: Remote(table.actors[shard]))
    coordinator = Coordinator.__new__(Coordinator)
    coordinator._config, coordinator._actors, coordinator._order = config, actors, actors.order
    coordinator._map, coordinator._epoch, coordinator._last_version = table.map, 1, 2
    coordinator._unsaved, coordinator._is_closed = {}, False
    coordinator._moving, coordinator._changing = threading.Lock(), threading.Lock()
    yield coordinator, table
    for actor in table.actors:
        actor.close()


def test_a_shard_that_is_lost_right_after_a_move_is_restored_with_the_rows_that_came(
    coordinated, tmp_path, monkeypatch
):
    coordinator, table = coordinated
    keys = np.arange(3000)
    call(Session(table), Op.INSERT, keys, ones(keys))
    coordinator._backup(0)
    buckets = np.arange(BUCKETS) % 2 == 0
    taker, backup, maps = table.actors[1], ShardActor.backup, []

    def is_lost_as_an_owner(self, keep):
        if self is taker and (self._shard.state.map.owners[buckets] == 1).all():
            maps.append(self._shard.state.map)
            raise errors.ServerError("the node is lost")
        return backup(self, keep)

    monkeypatch.setattr(ShardActor, "backup", is_lost_as_an_owner)
    with pytest.raises(errors.ServerError, match="are at shard 1, but .*the node is lost"):
        coordinator._move(0, 1, buckets)
    assert len(maps) == 1
    taker.close()
    table.actors[1] = Table.actor(
        tmp_path / "elsewhere",
        1,
        backups=coordinator._config.backups,
        restores=True,
        generation=1,
    )
    table.map = coordinator._map.placed(9, 1, Place(1, "elsewhere"))
    for actor in table.actors:
        actor.install(1, table.map)
    rows, found = call(Session(table), Op.FIND, keys)
    assert found.all() and (rows == 1).all()
    assert [actor._shard.count()[0] > 1000 for actor in table.actors] == [True, True]


def test_a_move_whose_backup_fails_is_cancelled_and_keeps_older_backups(coordinated, monkeypatch):
    coordinator, table = coordinated
    keys = np.arange(300)
    call(Session(table), Op.INSERT, keys, ones(keys))
    numbers = [coordinator._backup(1) for _ in range(5)]
    backups = table.actors[1]._shard.config.backup_directory

    def fails(self, keep):
        raise errors.IoError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ShardActor, "backup", fails)
        with pytest.raises(errors.ServerError, match="stay at shard 0: .*No space left"):
            coordinator._move(0, 1, np.ones(BUCKETS, bool))
    table.map = coordinator._map
    assert call(Session(table), Op.FIND, keys)[1].all() and len(table.actors[1]._shard.table) == 0
    coordinator._move(0, 1, np.ones(BUCKETS, bool))
    table.map = coordinator._map
    assert call(Session(table), Op.FIND, keys)[1].all()
    with forerun.Backups(backups) as kept:
        assert [backup.number for backup in kept.list().backups][:5] == numbers


def test_buckets_are_served_again_if_their_last_keys_take_too_long(coordinated, monkeypatch):
    coordinator, table = coordinated
    keys = np.arange(3000)
    call(Session(table), Op.INSERT, keys, ones(keys))
    copy_last, attempts = ShardActor.copy_last, []

    def too_slow(self, take, source):
        attempts.append(table.actors[0]._shard.state.frozen_version)
        if len(attempts) % 4:
            raise ray.exceptions.GetTimeoutError("not in time")
        copy_last(self, take, source)

    def catch_up(self, take, source):
        # Between two attempts their shard serves them.
        call(Session(table), Op.ADD_AT, keys, ones(keys), timeout=5)
        return caught_up(self, take, source)

    caught_up = ShardActor.catch_up
    monkeypatch.setattr(ShardActor, "catch_up", catch_up)
    monkeypatch.setattr(ShardActor, "copy_last", too_slow)
    coordinator._move(0, 1, np.ones(BUCKETS, bool))
    table.map = coordinator._map
    assert len(set(attempts)) == 4 and 0 not in attempts
    rows, found = call(Session(table), Op.FIND, keys)
    assert found.all() and (rows == 1 + 4).all() and len(table.actors[0]._shard.table) == 0
    # It is always too slow.
    monkeypatch.setattr(coordinator_module, "FREEZES_S", (5.0, 6.0, 7.0))
    with pytest.raises(errors.ServerError, match="stay at shard 1: .*within 7.0 s"):
        coordinator._move(1, 0, np.ones(BUCKETS, bool))
    table.map = coordinator._map
    rows, found = call(Session(table), Op.FIND, keys)
    assert found.all() and (rows == 1 + 7).all()


def test_writes_during_the_backup_of_a_move_are_copied_before_the_freeze(coordinated, monkeypatch):
    coordinator, table = coordinated
    keys = np.arange(3000)
    call(Session(table), Op.INSERT, keys, ones(keys))
    backup, left, freeze = ShardActor.backup, [], ShardActor.freeze

    def slow_backup(self, keep):
        if not left:
            call(Session(table), Op.ADD_AT, keys, ones(keys))
        return backup(self, keep)

    def looked_at(self, *args):
        left.append(self._shard.changes.left)
        return freeze(self, *args)

    monkeypatch.setattr(ShardActor, "backup", slow_backup)
    monkeypatch.setattr(ShardActor, "freeze", looked_at)
    coordinator._move(0, 1, np.ones(BUCKETS, bool))
    table.map = coordinator._map
    rows, found = call(Session(table), Op.FIND, keys)
    assert left == [0] and found.all() and (rows == 2).all()


def test_a_shard_on_a_node_that_others_do_not_know_yet_is_created_again(monkeypatch):
    config = shard_actors.TableConfig(
        "t", "n", DIM, "int64", 1, "/nowhere", "127.0.0.1", None, None, 0
    )
    actors, created, alive = shard_actors.ShardActors(config), [], {"new": "here"}

    def create(shard, place, restores, node_id):
        created.append(node_id)
        actors._actors[shard, place.generation] = len(created)

    def order(actor, method, timeout):
        if actor < 3:
            raise ray.exceptions.ActorUnschedulableError("no node fits")
        return {"node_id": "new"}

    monkeypatch.setattr(actors, "create", create)
    monkeypatch.setattr(actors, "order", order)
    monkeypatch.setattr(shard_actors, "alive_nodes", lambda: alive)
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: None)
    place = Place(0, "here", "new")
    create(0, place, False, "new")
    assert actors.await_start(0, place, False, "new") == {"node_id": "new"}
    assert created == ["new"] * 3
    # A node that is gone is another matter.
    created.clear()
    alive.clear()
    create(0, place, False, "new")
    with pytest.raises(ray.exceptions.ActorUnschedulableError):
        actors.await_start(0, place, False, "new")


def test_shards_that_run_with_other_arguments_are_not_taken_over(coordinated, tmp_path):
    """As after the end of a coordinator, when the table is made again."""
    coordinator, table = coordinated
    known = coordinator._config
    for changes, words in (
        ({}, None),
        ({"path": str(tmp_path / "other")}, "path=.*other"),
        ({"backups": None}, "backups=.*not None"),
        ({"options": {"memory": "64MiB"}}, "options={}, not"),
    ):
        made = {"path": str(tmp_path / "shards"), **changes}
        actors = shard_actors.ShardActors(replace(known, **made))
        running = {(0, 0): Remote(table.actors[0])}
        if words is None:
            assert actors.states(running)[0, 0].map.version == 2
        else:
            with pytest.raises(errors.InvalidArgumentError, match=words):
                actors.states(running)


# What is on the disks.


def test_shards_are_found_on_the_disks_of_nodes_with_new_names(tmp_path):
    """As after a restart of the cluster, with nodes in another order."""
    places = (Place(0, "a", "old-1"), Place(1, "b", "old-2"), Place(0, "c", "old-3"))
    newest = ShardMap(7, 5, even_owners(3), places)
    older = ShardMap(4, 5, even_owners(3), tuple(Place(0, p.node) for p in places))

    def put(node, name, shard, known, table="t"):
        directory = tmp_path / node / name
        directory.mkdir(parents=True)
        ShardState(table, shard, DIM, "int64", 1, known).save(directory)

    put("new-b", "shard-0000", 0, newest)
    put("new-c", "shard-0001.1", 1, newest)
    # That of a node that was away when the shard was restored.
    put("new-a", "shard-0001", 1, older)
    # Started once where its rows were not.
    put("new-a", "shard-0002", 2, None)
    put("new-b", "shard-0002", 2, newest)
    put("new-c", "shard-0000", 0, newest, table="another")
    (tmp_path / "new-c" / "shard-0002").mkdir()
    (tmp_path / "new-c" / "shard-old").mkdir()
    found = {
        node: shards_on_disk(str(tmp_path / node), "t") for node in ("new-a", "new-b", "new-c")
    }
    assert newest_map(found).version == 7
    assert [holders(found, s, p.generation) for s, p in enumerate(places)] == [
        ["new-b"],
        ["new-c"],
        ["new-b"],
    ]
    # One that cannot be read has its rows nevertheless.
    (tmp_path / "new-c" / "shard-0001.1" / "shard.json").write_text("{")
    found["new-c"] = shards_on_disk(str(tmp_path / "new-c"), "t")
    assert holders(found, 1, 1) == ["new-c"]
    assert newest_map({"nowhere": shards_on_disk(str(tmp_path / "nowhere"), "t")}) is None


def test_the_map_beside_the_backups_is_read_as_it_was_written(tmp_path):
    assert load_map(tmp_path, "t") is None
    known = ShardMap(3, 2**64 - 1, even_owners(2), (Place(0, "a", "x"), Place(4, "b", "y")))
    save_map(tmp_path, "t", known)
    back = load_map(tmp_path, "t")
    assert (back.version, back.seed, back.places) == (3, 2**64 - 1, known.places)
    assert (back.owners == known.owners).all()
    with pytest.raises(errors.VersionError, match="belongs to table 't'"):
        load_map(tmp_path, "u")
    text = (tmp_path / "map.json").read_text()
    for damaged in ("", "[]", text[:-9], "{}"):
        (tmp_path / "map.json").write_text(damaged)
        with pytest.raises(errors.CorruptionError, match="map.json"):
            load_map(tmp_path, "t")
