"""A shard that hangs, and a backup that takes long, keep nobody from watching and restoring the
other shards of a `ShardedTable`."""

import contextlib
import os
import signal
import time

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'forerun[ray]'")

from forerun import errors  # noqa: E402
from forerun._forerun import _buckets  # noqa: E402
from ray_actors import PATIENCE_S, process_of, shard_actors, stopped, until  # noqa: E402
from ray_cluster import TIMEOUT_MS, cluster, sharded  # noqa: E402, F401

KEYS = np.arange(400)


def keys_of(table, shard):
    shard_map = table._directory.map
    return KEYS[shard_map.owners[_buckets(KEYS.astype(np.uint64), shard_map.seed)] == shard]


def of_coordinator(table, look):
    """What a function returns in the process of the coordinator."""
    return ray.get(table._directory.coordinator.__ray_call__.remote(look))


def generation(table, shard):
    return of_coordinator(table, lambda self: self._map.places[shard].generation)


def lose_directory(path, shard, process):
    """A disk is lost: the shard's process ends, and its directory is gone."""
    os.rename(path / f"shard-{shard:04}", path / f"lost-{shard:04}")
    os.kill(process, signal.SIGKILL)


def test_a_shard_that_hangs_does_not_delay_the_watch_over_the_others(sharded):  # noqa: F811
    table = sharded(4, "int64", shards=2)
    table.insert(KEYS, np.ones((len(KEYS), 4), np.int64))
    hung = process_of(shard_actors(table)[0])
    keys, other = keys_of(table, 1), shard_actors(table)[1]

    def looks(count):
        """How long the coordinator takes to see what is written to shard 1, so many times."""
        began = time.monotonic()
        for _ in range(count):
            table.add_at(keys, np.ones((len(keys), 4), np.int64))
            written = ray.get(other.describe.remote())["keys_written"]
            until(lambda: of_coordinator(table, lambda self: self.unsaved_keys(1)) >= written)
        return time.monotonic() - began

    usual_s = looks(4)
    with stopped(hung):
        # A round waits for a second. Time-outs of ten seconds for each look would add up.
        assert looks(4) < usual_s + 35
    assert (table.find(keys)[0] == 9).all()
    assert generation(table, 0) == 0 and table.stats()["recoveries"] == []


def test_a_write_that_timed_out_while_its_shard_hung_does_not_follow_a_later_one(
    sharded,  # noqa: F811
):
    table = sharded(4, "int64", shards=1)
    table.insert(KEYS, np.zeros((len(KEYS), 4), np.int64))
    hung = process_of(shard_actors(table)[0])
    for value in range(1, 6):
        with stopped(hung):
            table._timeout_ms = 300
            with pytest.raises(errors.PartialError):
                table.insert(KEYS, np.full((len(KEYS), 4), value))
        table._timeout_ms = TIMEOUT_MS
        # The session of the failed call is in use by another thread.
        with table._sessions.session():
            table.insert(KEYS, np.full((len(KEYS), 4), -value))
        for _ in range(10):
            assert (table.find(KEYS)[0] == -value).all()
            time.sleep(0.01)


def test_a_shard_is_restored_while_another_hangs(sharded, tmp_path):  # noqa: F811
    table = sharded(4, "int64", shards=2, backups=tmp_path / "backups")
    table.insert(KEYS, np.ones((len(KEYS), 4), np.int64))
    assert table.backup() == [1, 1]
    actors = shard_actors(table)
    processes = {shard: process_of(actor) for shard, actor in actors.items()}
    keys = keys_of(table, 1)
    with stopped(processes[0]):
        lose_directory(tmp_path / "shards", 1, processes[1])
        until(lambda: generation(table, 1) == 1)
        rows, found = table.find(keys)
        assert found.all() and (rows == 1).all()
    # The one that has hung is what it was, and has the new map.
    rows, found = table.find(KEYS)
    assert found.all() and (rows == 1).all()
    assert generation(table, 0) == 0
    version = of_coordinator(table, lambda self: self._map.version)
    describe = shard_actors(table)[0].describe
    until(lambda: ray.get(describe.remote())["state"].map.version == version)


def test_a_backup_that_does_not_end_does_not_keep_a_lost_shard_from_being_restored(
    sharded, tmp_path  # noqa: F811
):
    table = sharded(4, "int64", shards=2, backups=tmp_path / "backups")
    table.insert(KEYS, np.ones((len(KEYS), 4), np.int64))
    assert table.backup() == [1, 1]
    actors = shard_actors(table)
    processes = {shard: process_of(actor) for shard, actor in actors.items()}
    with stopped(processes[0]):
        backup = table._directory.coordinator.backup.remote(3)
        until(lambda: of_coordinator(table, lambda self: self._moving.locked()))
        lose_directory(tmp_path / "shards", 1, processes[1])
        until(lambda: generation(table, 1) == 1)
        assert (table.find(keys_of(table, 1))[0] == 1).all()
        assert ray.wait([backup], timeout=0)[0] == []
    # It goes on with the shard that was restored.
    assert ray.get(backup, timeout=PATIENCE_S) == [2, 2]
    assert (table.find(KEYS)[0] == 1).all()


def test_a_shard_is_restored_while_buckets_of_others_are_copied(sharded, tmp_path):  # noqa: F811
    table = sharded(4, "int64", shards=3, backups=tmp_path / "backups")
    table.insert(KEYS, np.ones((len(KEYS), 4), np.int64))
    table.backup()
    actors = shard_actors(table)
    processes = {shard: process_of(actor) for shard, actor in actors.items()}
    before = table._directory.map.owners
    with stopped(processes[2]):
        # Shard 2 is to give its buckets away, and hangs.
        move = table._directory.coordinator.reshard.remote(2)
        until(lambda: of_coordinator(table, lambda self: self._moving.locked()))
        lose_directory(tmp_path / "shards", 1, processes[1])
        until(lambda: generation(table, 1) == 1)
        assert (table.find(keys_of(table, 1))[0] == 1).all()
    # The move may have begun again from the new map, or was cancelled. Nothing is lost by it.
    with contextlib.suppress(ray.exceptions.RayTaskError):
        ray.get(move, timeout=PATIENCE_S)
    rows, found = table.find(KEYS)
    assert found.all() and (rows == 1).all() and len(table) == len(KEYS)
    table.reshard(2)
    assert table.shards == 2 and (table._directory.map.owners[before == 0] == 0).all()
    assert (table.find(KEYS)[0] == 1).all() and len(table) == len(KEYS)
