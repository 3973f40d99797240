"""`forerun.ray.ShardedTable` on a cluster of two local nodes, compared with a `Table`."""

import contextlib
import os
import pickle
import shutil
import signal
import threading
import time
import warnings

import forerun
import numpy as np
import pytest
from forerun import errors

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'forerun[ray]'")

from forerun._forerun import _buckets  # noqa: E402
from forerun.ray import LostWritesWarning, ShardedTable  # noqa: E402
from forerun.ray.shard_map import BUCKETS  # noqa: E402
from ray_actors import PATIENCE_S, node_of, process_of, shard_actors, stopped, until  # noqa: E402
from ray_cluster import NODE, TIMEOUT_MS, cluster, sharded  # noqa: E402, F401
from ray_load import Load  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402


@pytest.fixture(scope="module")
def shared_table(cluster, tmp_path_factory):
    """One table for the tests that change nothing but its rows."""
    with_path = {"path": tmp_path_factory.mktemp("shared") / "shards", "name": "shared"}
    table = ShardedTable(4, shards=3, timeout_ms=TIMEOUT_MS, **with_path)
    yield table
    table.shutdown()


@pytest.fixture
def empty_table(shared_table):
    shared_table.reshard(3)
    shared_table.erase(list(shared_table.keys()))
    return shared_table


@pytest.fixture(scope="module")
def counters(cluster, tmp_path_factory):
    """One table for the tests that move its buckets and end its processes."""
    path = tmp_path_factory.mktemp("counters") / "shards"
    options = {"path": path, "name": "counters", "host_capacity": 2000, "timeout_ms": TIMEOUT_MS}
    table = ShardedTable(4, "int64", shards=2, **options)
    yield table
    table.shutdown()


@pytest.fixture
def empty_counters(counters):
    """The table in 2 shards, whatever the tests before have left."""
    counters.reshard(2)
    counters.erase(list(counters.keys()))
    assert len(counters) == 0
    return counters


def rows_of(keys, version=0, dim=64):
    """Rows that carry their key and a version."""
    column = np.asarray(keys, np.float32) + np.float32(version)
    return np.repeat(column[..., None], dim, axis=-1)


# The table.


@contextlib.contextmanager
def killed_meanwhile(table, shard):
    """Kills the process of a shard while the calls inside run."""
    process = process_of(shard_actors(table)[shard])
    killer = threading.Timer(0.01, os.kill, (process, signal.SIGKILL))
    killer.start()
    yield
    assert killer.finished.is_set(), "the calls ended before the process did"


def test_a_million_rows_equal_those_of_one_table_row_by_row(sharded):
    """Although the table grows from 2 to 4 shards meanwhile, and loses a process while it is
    written and while it is read."""
    table = sharded(64, shards=2)
    count, step = 1_000_000, 100_000
    keys = np.random.default_rng(7).permutation(count).astype(np.uint64)
    keys[::2] = ~keys[::2]
    numbers, moves = np.random.default_rng(8), []
    grows = threading.Thread(target=lambda: moves.extend(table.reshard(4)))
    with forerun.Table(64) as one:

        def insert(at):
            part, rows = keys[at : at + step], numbers.random((step, 64), np.float32)
            table.insert(part, rows)
            one.insert(part, rows)

        for at in range(0, count - step, step):
            if at == 2 * step:
                grows.start()
            insert(at)
        grows.join()
        print(f"pauses of {[round(move['pause_ms']) for move in moves]} ms")
        assert [int(n) for n in np.bincount(table._directory.map.owners)] == [256] * 4
        assert len({node_of(actor) for actor in shard_actors(table).values()}) == 2
        with killed_meanwhile(table, 1):
            insert(count - step)
        some = keys[::7]
        extra = numbers.random((len(some), 64), np.float32)
        with killed_meanwhile(table, 3):
            assert (table.add_at(some, extra) == one.add_at(some, extra)).all()
        assert (table.assign(some[:999], extra[:999]) == one.assign(some[:999], extra[:999])).all()
        gone = keys[5::1000]
        table.erase(gone)
        one.erase(gone)
        out, found = np.zeros((step, 64), np.float32), np.zeros(step, bool)
        expected, expected_found = np.zeros_like(out), np.zeros_like(found)
        with killed_meanwhile(table, 2):
            for at in range(0, count, step):
                part = keys[at : at + step]
                rows, flags = table.find(part, out=out, found=found)
                one.find(part, out=expected, found=expected_found)
                assert rows is out and flags is found
                assert (found == expected_found).all() and found.sum() == step - 100
                assert (out[found] == expected[found]).all()
        assert len(table) == len(one) == count - len(gone)
        seen = 0
        for part, rows in table.export(50_000):
            expected, flags = one.find(part)
            assert flags.all() and (rows == expected).all()
            seen += len(part)
        assert seen == len(one)
        assert table.stats()["recoveries"] == []


@pytest.mark.parametrize("transport", ["tcp", "actor"])
def test_calls_take_and_return_what_those_of_a_table_do(empty_table, transport):
    one = forerun.Table(4)
    table = ShardedTable.attach(empty_table.name, transport=transport, timeout_ms=TIMEOUT_MS)
    assert (table.dim, table.dtype, table.shards) == (4, "float32", 3)
    keys = np.arange(24).reshape(2, 3, 4)
    for each in (one, table):
        each.insert(keys, rows_of(keys, dim=4))
        each.insert([7, 7, -1], [[1] * 4, [2] * 4, [3] * 4])
        each[30] = [5, 6, 7, 8]
    for some in (keys, keys.T, keys[::-1], [5, 99], 3, [], np.empty((0, 3), np.int64), [2**64 - 1]):
        rows, found = table.find(some)
        expected, expected_found = one.find(some)
        assert rows.shape == expected.shape and (rows == expected).all()
        assert found.shape == expected_found.shape and (found == expected_found).all()
        assert (table.contains(some) == one.contains(some)).all()
    out = np.full((3, 4), 9, np.float32)
    assert table.find([5, 77, 6], out=out)[0] is out
    assert out.tolist() == [[5] * 4, [9] * 4, [6] * 4]
    assert table[30].tolist() == [5, 6, 7, 8] and 30 in table and 31 not in table
    assert table.get(31) is None and table.get(31, 1) == 1 and len(table) == len(one) == 26
    del table[30]
    with pytest.raises(KeyError):
        table[30]
    with pytest.raises(KeyError):
        del table[30]
    assert table.assign([1, 40], [[9] * 4] * 2).tolist() == [True, False]
    assert table.add_at([1, 1, 40], [[1] * 4] * 3).tolist() == [True, True, False]
    assert table[1].tolist() == [11] * 4
    table.prefetch(keys)
    table.flush()
    assert sorted(table) == sorted(table.keys()) == sorted(key for key, _ in table.items())
    assert len(list(table.values())) == 25 and bool(table)
    assert table.stats()["map_version"] == table.map_version

    again = pickle.loads(pickle.dumps(table))
    assert (again.find(keys)[0] == table.find(keys)[0]).all()
    again.close()
    with pytest.raises(errors.ClosedError):
        again.find(keys)
    assert ray.get(ray.remote(num_cpus=0)(lambda t: int(t[5][0])).remote(table)) == 5
    table.close()


def test_what_a_table_refuses_is_refused(empty_table, tmp_path):
    table = empty_table
    for call in (
        lambda: table.insert(np.arange(3), np.zeros((2, 4), np.float32)),
        lambda: table.insert([1], np.zeros((1, 4), np.int32)),
        lambda: table.insert([1.5], np.zeros((1, 4), np.float32)),
        lambda: table.insert([True], np.zeros((1, 4), np.float32)),
        lambda: table.find([1], out=np.zeros((1, 5), np.float32)),
        lambda: table.find([1, 2], out=np.zeros((4, 2), np.float32)),
        lambda: table.find([1, 2], out=np.zeros((4, 2), np.float32).T),
        lambda: table.find([1, 2], found=np.zeros(3, bool)),
        lambda: table.export(0),
        lambda: table.reshard(0),
        lambda: table.backup(),
        lambda: ShardedTable(4, path=tmp_path, writes="back"),
        lambda: ShardedTable(4, path=tmp_path, shards=0),
        lambda: ShardedTable(4, path=tmp_path, name="a/b"),
        lambda: ShardedTable(4, path=tmp_path, evict_strategy="random"),
        lambda: ShardedTable(4, "complex64", path=tmp_path),
        lambda: ShardedTable.attach(table.name, timeout_ms=0),
        lambda: ShardedTable.attach(table.name, transport="carrier pigeon"),
    ):
        with pytest.raises(errors.InvalidArgumentError):
            call()
    frozen = np.zeros((1, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(errors.InvalidArgumentError, match="written"):
        table.find([1], out=frozen)
    with pytest.raises(errors.NotFoundError):
        ShardedTable.attach("nowhere")
    with pytest.raises(errors.NotFoundError):
        ShardedTable(4, path=tmp_path, name="nowhere", create="never")
    with pytest.raises(errors.AlreadyExistsError):
        ShardedTable(4, path=tmp_path, name=table.name, create="must_be_new")
    with pytest.raises(errors.VersionError):
        ShardedTable(5, path=tmp_path, name=table.name)
    assert table.find([1])[1].tolist() == [False]


def test_threads_share_a_handle(empty_table):
    table, keys = empty_table, np.arange(200)
    table.insert(keys, np.zeros((200, 4), np.float32))
    failures = []

    def work():
        try:
            for _ in range(20):
                table.add_at(keys, np.ones((200, 4), np.float32))
                rows, found = table.find(keys)
                assert found.all() and (rows == rows[:, :1]).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (table.find(keys)[0] == 80).all()


# Failures.


def test_the_coordinator_may_be_killed(empty_counters):
    table = empty_counters
    with Load(table, writers=1) as load:
        load.wait(2)
        os.kill(process_of(table._directory.coordinator), signal.SIGKILL)
        load.wait(2)
        moves = table.reshard(3)
        load.wait(2)
    load.check()
    assert table.shards == 3 and sum(move["buckets"] for move in moves) == BUCKETS // 3


def test_a_shard_that_is_killed_loses_nothing_and_adds_nothing_twice(empty_counters):
    table = empty_counters
    table.reshard(4)
    with Load(table) as load:
        load.wait(3)
        for shard in (1, 2):
            os.kill(process_of(shard_actors(table)[shard]), signal.SIGKILL)
            load.wait(3)
    load.check()
    print(f"the longest call took {load.longest_s:.1f} s")


def test_shards_are_added_under_load(empty_counters):
    table = empty_counters
    others = np.arange(10**6, 10**6 + 20_000)
    table.insert(others, np.ones((len(others), 4), np.int64))
    stale = ShardedTable.attach(table.name)
    stale.find([1])
    with Load(table) as load:
        load.wait(2)
        moves = table.reshard(4)
        load.wait(2)
    load.check()
    pauses = [move["pause_ms"] for move in moves]
    print(f"pauses of {[round(pause) for pause in pauses]} ms")
    assert table.shards == 4 and len(moves) == 2 and min(pauses) > 0
    assert [int(n) for n in np.bincount(table._directory.map.owners)] == [256] * 4
    # A handle with an old map learns so, and asks again.
    assert stale.map_version < table.map_version
    rows, found = stale.find(others)
    assert found.all() and (rows == 1).all() and stale.map_version == table.map_version
    stale.close()
    assert len(table) == load.keys.size + len(others)
    exported = np.concatenate([keys for keys, _ in table.export()])
    assert sorted(exported) == sorted([*load.keys.ravel(), *others])
    # Back to fewer.
    table.reshard(1)
    assert table.shards == 1 and len(table) == len(exported)
    load.check()


def test_a_move_that_is_cut_off_leaves_the_buckets_where_they_were(empty_counters):
    table = empty_counters
    keys = np.arange(60_000)
    table.insert(keys, np.ones((len(keys), 4), np.int64))
    with Load(table, keys=500) as load:
        # Shard 1 gives its buckets to shard 0.
        for victim in (0, 1):
            actors, outcome = shard_actors(table), []
            process = process_of(actors[victim])

            def move():
                try:
                    outcome.append(table.reshard(1))
                except errors.ServerError as error:
                    outcome.append(error)

            thread = threading.Thread(target=move)
            thread.start()
            # The one that gives notes what is written while it is copied. On a busy machine the
            # move may be over before it is seen.
            is_copied = actors[1].__ray_call__
            until(
                lambda: not thread.is_alive()
                or ray.get(is_copied.remote(lambda shard: shard._shard.changes is not None))
            )
            os.kill(process, signal.SIGKILL)
            thread.join()
            load.wait(2)
            if not isinstance(outcome[0], list):
                assert "stay at shard 1" in str(outcome[0])
                assert table.shards == 2
                table.reshard(1)
            assert table.shards == 1
            load.wait(2)
            if victim == 0:
                table.reshard(2)
    load.check()
    rows, found = table.find(keys[1000:])
    assert found.all() and (rows == 1).all() and len(table) == len(keys)


def test_a_lost_node_is_restored_from_its_backup_and_the_loss_is_counted(
    cluster, sharded, tmp_path
):
    node = cluster.add_node(**NODE)
    here, keys, tables = ray.get_runtime_context().get_node_id(), np.arange(3000), []
    # The coordinator starts near the one who makes the table, as a rule: shortly after nodes were
    # added, Ray may choose another one. Wherever it is, the outcome is the same.
    make = ray.remote(num_cpus=0)(lambda given: ShardedTable(4, "int64", **given).close())
    made = []
    for there in (node.node_id, here):
        options = {
            "name": f"near-{there}",
            "path": str(tmp_path / there),
            "shards": 2,
            "nodes": [node.node_id, here],
            "backups": str(tmp_path / f"backups-{there}"),
        }
        strategy = NodeAffinitySchedulingStrategy(there, soft=False)
        made.append(make.options(scheduling_strategy=strategy).remote(options))
    ray.get(made)
    for there in (node.node_id, here):
        table = ShardedTable.attach(f"near-{there}", timeout_ms=TIMEOUT_MS)
        sharded.made.append(table)
        table.insert(keys, np.ones((3000, 4), np.int64))
        assert table.backup() == [1, 1]
        for _ in range(2):
            table.add_at(keys, np.ones((3000, 4), np.int64))
        of_shards = {s: node_of(actor) for s, actor in shard_actors(table).items()}
        tables += [(table, s) for s, its_node in of_shards.items() if its_node == node.node_id]
    assert len(tables) == 2
    cluster.remove_node(node, allow_graceful=False)
    for table, shard in tables:
        with pytest.warns(LostWritesWarning, match="2 writes"):
            until(lambda: table.stats()["recoveries"])
            rows, found = table.find(keys)
        assert found.all()
        shard_map = table._directory.map
        lost = shard_map.owners[_buckets(keys.astype(np.uint64), shard_map.seed)] == shard
        assert (rows[~lost] == 3).all() and (rows[lost] == 1).all()
        stats = table.stats()
        assert stats["lost_writes"] == 2 and stats["lost_keys"] == 2 * lost.sum()
        (recovery,) = stats["recoveries"]
        assert recovery["shard"] == shard and recovery["backup"] == 1
        assert shard_map.places[shard].generation == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error", LostWritesWarning)
            table.add_at(keys, np.ones((3000, 4), np.int64))
            assert (table.find(keys)[0][lost] == 2).all()
        # A coordinator that restarts knows all of it.
        os.kill(process_of(table._directory.coordinator), signal.SIGKILL)
        again = table.stats()
        for name in ("lost_writes", "lost_keys", "recoveries"):
            assert again[name] == stats[name]


def test_a_shard_whose_directory_has_vanished_does_not_pretend_to_be_empty(sharded, tmp_path):
    options = {"name": "vanishing", "shards": 1, "backups": tmp_path / "backups"}
    table, keys, ones = sharded(4, "int64", **options), np.arange(100), np.ones((100, 4), np.int64)
    table.insert(keys, ones)
    table.backup()
    process, first = process_of(shard_actors(table)[0]), tmp_path / "shards" / "shard-0000"
    os.rename(first, tmp_path / "gone")
    os.kill(process, signal.SIGKILL)
    # Although nobody asks for a key.
    assert len(table) == 100
    assert (table.find(keys)[0] == 1).all()
    assert [r["shard"] for r in table.stats()["recoveries"]] == [0]
    table.add_at(keys, ones)
    # The former directory is back, as that of a node that was away. The table is opened with the
    # one that counts.
    shutil.rmtree(first)
    os.rename(tmp_path / "gone", first)
    table.shutdown()
    table = sharded(4, "int64", **options)
    assert (table.find(keys)[0] == 2).all() and len(table) == 100
    table.shutdown()
    # All disks are new.
    shutil.rmtree(tmp_path / "shards")
    table = sharded(4, "int64", **options)
    assert (table.find(keys)[0] == 1).all() and len(table) == 100


def test_a_lost_shard_does_not_keep_the_coordinator_from_answering(empty_table):
    coordinator = empty_table._directory.coordinator
    # As during a long move.
    ray.get(coordinator.__ray_call__.remote(lambda self: self._changing.acquire()))
    calls = [coordinator.restore.remote(0, 0) for _ in range(100)]
    assert ray.get(coordinator.current_map.remote(), timeout=PATIENCE_S).version > 0
    ray.get(coordinator.__ray_call__.remote(lambda self: self._changing.release()))
    ray.get(calls, timeout=PATIENCE_S)


def test_a_shard_that_cannot_start_on_its_node_is_not_restored_but_started_again(
    sharded, tmp_path
):
    table = sharded(4, "int64", shards=2, backups=tmp_path / "backups")
    keys = np.arange(100)
    table.insert(keys, np.ones((100, 4), np.int64))
    table.backup()
    table.add_at(keys, np.ones((100, 4), np.int64))
    actor = shard_actors(table)[1]
    process = process_of(actor)
    state = tmp_path / "shards" / "shard-0001" / "shard.json"
    text = state.read_text()
    state.write_text(text[:100])
    os.kill(process, signal.SIGKILL)

    def is_given_up():
        """Whether Ray has tried to start the shard again, and failed."""
        try:
            ray.get(actor.endpoint.remote())
        except ray.exceptions.ActorDiedError:
            return True
        except ray.exceptions.RayActorError:
            return False
        return False

    until(is_given_up)
    state.write_text(text)
    rows, found = table.find(keys)
    assert found.all() and (rows == 2).all()
    assert table.stats()["recoveries"] == []


def test_a_shard_that_stays_away_fails_its_keys_only(empty_table):
    table = ShardedTable.attach(empty_table.name, timeout_ms=1500)
    keys = np.arange(100)
    table.insert(keys, rows_of(keys, dim=4))
    process = process_of(shard_actors(table)[0])
    with stopped(process):
        out, found = np.zeros((100, 4), np.float32), np.ones(100, bool)
        with pytest.raises(errors.PartialError, match="shard 0") as caught:
            table.find(keys, out=out, found=found)
        failed = np.zeros(100, bool)
        failed[caught.value.positions] = True
        assert (found == ~failed).all() and 0 < failed.sum() < 100
        assert (out[found] == rows_of(keys, dim=4)[found]).all()
        with pytest.raises(errors.ServerError):
            table.flush()
    assert empty_table.find(keys)[1].all()
    table.close()


def test_a_table_is_opened_again_with_its_map(sharded, tmp_path):
    table = sharded(4, name="again", shards=1)
    keys = np.arange(5000)
    table.insert(keys, rows_of(keys, dim=4))
    table.reshard(2)
    version = table.map_version
    table.shutdown()
    table = sharded(4, name="again", shards=1)
    assert (table.shards, table.map_version) == (2, version)
    assert (table.find(keys)[0] == rows_of(keys, dim=4)).all() and len(table) == 5000


def test_a_dataset_is_loaded_by_its_tasks(empty_table):
    pytest.importorskip("pyarrow", reason="ray.data needs pyarrow and pandas")
    pytest.importorskip("pandas", reason="ray.data needs pyarrow and pandas")
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    table = empty_table
    dataset = ray.data.range(3000, override_num_blocks=4).map_batches(
        lambda batch: {"k": batch["id"], "v": np.repeat(batch["id"][:, None] * 1.0, 4, axis=1)}
    )
    with pytest.raises(errors.InvalidArgumentError, match="no column w"):
        table.load(dataset, key="k", row="w")
    assert table.load(dataset, key="k", row="v", batch=500) == 3000
    assert (table.find(np.arange(3000))[0] == rows_of(np.arange(3000), dim=4)).all()
    # Lookups inside tasks: a handle travels with the function.
    looked_up = ray.data.range(100, override_num_blocks=2).map_batches(
        lambda batch: {"sum": table.find(batch["id"])[0].sum(axis=1)}
    )
    assert looked_up.sum("sum") == 4 * sum(range(100))


def test_a_table_is_a_dataset(empty_table, sharded, tmp_path):
    pytest.importorskip("pyarrow", reason="ray.data needs pyarrow and pandas")
    pytest.importorskip("pandas", reason="ray.data needs pyarrow and pandas")
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    table, keys = empty_table, np.arange(3000)
    assert table.to_dataset().count() == 0
    table.insert(keys, rows_of(keys, dim=4))
    dataset = table.to_dataset(key="k", row="v", batch=700)
    # The tasks find the rows where they are when they run.
    table.reshard(2)
    columns = dataset.take_batch(4000)
    order = np.argsort(columns["k"])
    assert (columns["k"][order] == keys).all()
    assert (columns["v"][order] == rows_of(keys, dim=4)).all()
    # And back, into another table.
    copy = sharded(4, shards=1, path=tmp_path / "copy")
    assert copy.load(dataset, key="k", row="v") == 3000
    assert (copy.find(keys)[0] == rows_of(keys, dim=4)).all()
    for options in ({"key": "x", "row": "x"}, {"batch": 0}):
        with pytest.raises(errors.InvalidArgumentError):
            table.to_dataset(**options)


def test_a_fork_refuses_calls(empty_table):
    table = empty_table
    table.insert([1], [[1, 2, 3, 4]])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            table.find([1])
            os.write(writing, b"answered")
        except errors.ForkedError:
            os.write(writing, b"refused")
        finally:
            os._exit(0)
    assert os.read(reading, 100) == b"refused"
    os.waitpid(child, 0)
    assert table.find([1])[1].all()
