"""`forerun.ray.ShardedTable` on a cluster of two local nodes, compared with a `Table`."""

import os
import pickle
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


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    # Nothing of these tests needs a token, and a token would be written to the home directory.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    node = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_dashboard": False}
    # A node that ended is noticed after some seconds.
    node["_system_config"] = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 5,
    }
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
        ray.init(address=cluster.address, logging_level="WARNING", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def sharded(cluster, tmp_path):
    """Makes sharded tables, and ends them."""
    made = []

    def make(*args, **options):
        options.setdefault("path", tmp_path / "shards")
        options.setdefault("name", f"t{len(made)}-{tmp_path.name}")
        options.setdefault("timeout_ms", 60_000)
        made.append(ShardedTable(*args, **options))
        return made[-1]

    yield make
    for table in made:
        try:
            table.shutdown()
        except (errors.Error, ray.exceptions.RayError, ValueError):
            pass


def rows_of(keys, version=0, dim=64):
    """Rows that carry their key and a version."""
    column = np.asarray(keys, np.float32) + np.float32(version)
    return np.repeat(column[..., None], dim, axis=-1)


def shard_actors(table):
    """The actors of a table's shards, by number."""
    directory = table._directory
    shards = range(len(directory.map.places))
    deadline = time.monotonic() + 60
    return {shard: directory.endpoint(shard, deadline, deadline)[1] for shard in shards}


def process_of(actor):
    """The process of an actor."""
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


def node_of(actor):
    return ray.get(actor.describe.remote())["node_id"]


# The table.


def test_a_million_rows_equal_those_of_one_table_row_by_row(sharded, tmp_path):
    table = sharded(64, shards=4)
    assert len({node_of(actor) for actor in shard_actors(table).values()}) == 2
    count, step = 1_000_000, 100_000
    keys = np.random.default_rng(7).permutation(count).astype(np.uint64)
    keys[::2] = ~keys[::2]
    numbers = np.random.default_rng(8)
    with forerun.Table(64, path=tmp_path / "one", host_capacity=50_000) as one:
        for at in range(0, count, step):
            part = keys[at : at + step]
            rows = numbers.random((step, 64), np.float32)
            table.insert(part, rows)
            one.import_rows(np.sort(part), rows[np.argsort(part)])
        some = keys[::7]
        extra = numbers.random((len(some), 64), np.float32)
        assert (table.add_at(some, extra) == one.add_at(some, extra)).all()
        assert (table.assign(some[:999], extra[:999]) == one.assign(some[:999], extra[:999])).all()
        gone = keys[5::1000]
        table.erase(gone)
        one.erase(gone)
        out, found = np.zeros((step, 64), np.float32), np.zeros(step, bool)
        expected, expected_found = np.zeros_like(out), np.zeros_like(found)
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
        counts = [shard["keys_written"] for shard in table.stats()["shards"]]
        assert min(counts) > 0.9 * max(counts)


@pytest.mark.parametrize("transport", ["tcp", "actor"])
def test_calls_take_and_return_what_those_of_a_table_do(sharded, transport):
    one = forerun.Table(4)
    table = sharded(4, shards=3, transport=transport)
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
    assert table.stats()["map_version"] == 1

    again = pickle.loads(pickle.dumps(table))
    assert (again.find(keys)[0] == table.find(keys)[0]).all()
    again.close()
    with pytest.raises(errors.ClosedError):
        again.find(keys)
    assert ray.get(ray.remote(num_cpus=0)(lambda t: int(t[5][0])).remote(table)) == 5


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bfloat16", "float64"])
def test_every_type_comes_back_and_adds(sharded, dtype):
    table, one = sharded(3, dtype, shards=2), forerun.Table(3, dtype)
    as_numpy = np.uint16 if dtype == "bfloat16" else dtype
    rows = np.arange(30).reshape(10, 3).astype(as_numpy)
    for each in (table, one):
        each.insert(np.arange(10), rows)
        each.add_at(np.arange(10), rows)
    back, expected = table.find(np.arange(10))[0], one.find(np.arange(10))[0]
    assert back.dtype == expected.dtype and (back == expected).all()
    for _, exported in table.export():
        assert exported.dtype == expected.dtype


def test_what_a_table_refuses_is_refused(sharded, tmp_path):
    table = sharded(4, shards=2)
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


def test_threads_share_a_handle(sharded):
    table = sharded(4, "int64", shards=3)
    keys = np.arange(200)
    table.insert(keys, np.zeros((200, 4), np.int64))
    failures = []

    def work():
        try:
            for _ in range(20):
                table.add_at(keys, np.ones((200, 4), np.int64))
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


class Load:
    """Threads that read and write a table until they shall stop.

    Each writer has its own keys and adds 1 to their rows, so a row must be between the number of
    acknowledged additions and that of attempted ones; and equal to it if no call failed.
    """

    def __init__(self, table, writers=2, readers=1, keys=4000, dim=4):
        self.table, self.keys = table, np.arange(keys * writers).reshape(writers, keys)
        table.insert(self.keys, np.zeros((writers, keys, dim), np.int64))
        self.added = [0] * writers
        self.reads, self.failures, self.longest_s = 0, [], 0.0
        self.dim, self.stop = dim, threading.Event()
        self.threads = [
            threading.Thread(target=self._run, args=(call, number))
            for call, count in ((self._write, writers), (self._read, readers))
            for number in range(count)
        ]

    def _run(self, call, number):
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                call(number)
            except BaseException as error:
                self.failures.append(error)
                return
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def _write(self, number):
        keys = self.keys[number]
        found = self.table.add_at(keys, np.ones((len(keys), self.dim), np.int64))
        assert found.all()
        self.added[number] += 1

    def _read(self, number):
        before = list(self.added)
        rows, found = self.table.find(self.keys)
        assert found.all(), "a row is missing"
        assert (rows == rows[..., :1]).all(), "a torn row"
        for writer, least in enumerate(before):
            # One addition may be under way.
            assert rows[writer].min() >= least, "an addition is missing"
            assert rows[writer].max() <= self.added[writer] + 1, "an addition was applied twice"
        self.reads += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def wait(self, more, seconds=60):
        """Waits until every writer and the readers have got on."""
        added, reads = [n + more for n in self.added], self.reads + more
        deadline = time.monotonic() + seconds
        while any(now < then for now, then in zip(self.added, added)) or self.reads < reads:
            assert time.monotonic() < deadline, "no progress"
            assert not self.failures, self.failures
            time.sleep(0.01)

    def check(self):
        assert not self.failures, self.failures
        rows, found = self.table.find(self.keys)
        assert found.all()
        for writer, count in enumerate(self.added):
            assert (rows[writer] == count).all()


def test_a_shard_that_is_killed_loses_nothing_and_adds_nothing_twice(sharded):
    table = sharded(4, "int64", shards=4)
    with Load(table) as load:
        load.wait(3)
        for shard in (1, 2):
            os.kill(process_of(shard_actors(table)[shard]), signal.SIGKILL)
            load.wait(3)
    load.check()
    print(f"the longest call took {load.longest_s:.1f} s")


def test_the_coordinator_may_be_killed(sharded):
    table = sharded(4, "int64", shards=2)
    with Load(table, writers=1) as load:
        load.wait(2)
        os.kill(process_of(table._directory.coordinator), signal.SIGKILL)
        load.wait(2)
        moves = table.reshard(3)
        load.wait(2)
    load.check()
    assert table.shards == 3 and sum(move["buckets"] for move in moves) == BUCKETS // 3


def test_shards_are_added_under_load(sharded):
    table = sharded(4, "int64", shards=2, host_capacity=2000)
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


@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_move_that_is_cut_off_leaves_the_buckets_where_they_were(sharded, victim):
    table = sharded(4, "int64", shards=2)
    keys = np.arange(60_000)
    table.insert(keys, np.ones((len(keys), 4), np.int64))
    outcome = []

    def move():
        try:
            outcome.append(table.reshard(1))
        except errors.ServerError as error:
            outcome.append(error)

    # Shard 1 gives its buckets to shard 0.
    process = process_of(shard_actors(table)[1 if victim == "source" else 0])
    thread = threading.Thread(target=move)
    with Load(table, keys=500) as load:
        thread.start()
        time.sleep(0.3)
        os.kill(process, signal.SIGKILL)
        thread.join()
        load.wait(2)
        if not isinstance(outcome[0], list):
            assert "stay at shard 1" in str(outcome[0])
            assert table.shards == 2
            table.reshard(1)
        load.wait(2)
    load.check()
    assert table.shards == 1
    rows, found = table.find(keys[1000:])
    assert found.all() and (rows == 1).all() and len(table) == len(keys)


def test_a_lost_node_is_restored_from_its_backup_and_the_loss_is_counted(
    cluster, sharded, tmp_path
):
    node = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
    nodes = [n["NodeID"] for n in ray.nodes() if n["Alive"]]
    table = sharded(4, "int64", shards=len(nodes), backups=tmp_path / "backups")
    keys = np.arange(3000)
    table.insert(keys, np.ones((3000, 4), np.int64))
    assert table.backup() == [1] * len(nodes)
    for _ in range(2):
        table.add_at(keys, np.ones((3000, 4), np.int64))
    shard = next(
        s for s, actor in shard_actors(table).items() if node_of(actor) == node.node_id
    )
    cluster.remove_node(node, allow_graceful=False)
    with pytest.warns(LostWritesWarning, match="2 writes"):
        deadline = time.monotonic() + 90
        while not table.stats()["recoveries"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
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
        warnings.simplefilter("error")
        table.add_at(keys, np.ones((3000, 4), np.int64))
        assert (table.find(keys)[0][lost] == 2).all()


def test_a_shard_whose_directory_has_vanished_does_not_pretend_to_be_empty(sharded, tmp_path):
    table = sharded(4, shards=2, backups=tmp_path / "backups")
    table.insert(np.arange(100), rows_of(np.arange(100), dim=4))
    table.backup()
    process = process_of(shard_actors(table)[1])
    os.rename(tmp_path / "shards" / "shard-0001", tmp_path / "gone")
    os.kill(process, signal.SIGKILL)
    rows, found = table.find(np.arange(100))
    assert found.all() and (rows == rows_of(np.arange(100), dim=4)).all()
    assert [r["shard"] for r in table.stats()["recoveries"]] == [1]


def test_a_shard_that_cannot_start_on_its_node_is_not_restored_but_started_again(
    sharded, tmp_path
):
    table = sharded(4, "int64", shards=2, backups=tmp_path / "backups")
    keys = np.arange(100)
    table.insert(keys, np.ones((100, 4), np.int64))
    table.backup()
    table.add_at(keys, np.ones((100, 4), np.int64))
    process = process_of(shard_actors(table)[1])
    state = tmp_path / "shards" / "shard-0001" / "shard.json"
    text = state.read_text()
    state.write_text(text[:100])
    os.kill(process, signal.SIGKILL)
    time.sleep(3)
    state.write_text(text)
    rows, found = table.find(keys)
    assert found.all() and (rows == 2).all()
    assert table.stats()["recoveries"] == []


def test_a_shard_that_stays_away_fails_its_keys_only(sharded, tmp_path):
    table = sharded(4, shards=2, timeout_ms=1500)
    keys = np.arange(100)
    table.insert(keys, rows_of(keys, dim=4))
    process = process_of(shard_actors(table)[0])
    os.kill(process, signal.SIGSTOP)
    try:
        out, found = np.zeros((100, 4), np.float32), np.ones(100, bool)
        with pytest.raises(errors.PartialError, match="shard 0") as caught:
            table.find(keys, out=out, found=found)
        failed = np.zeros(100, bool)
        failed[caught.value.positions] = True
        assert (found == ~failed).all() and 0 < failed.sum() < 100
        assert (out[found] == rows_of(keys, dim=4)[found]).all()
        with pytest.raises(errors.ServerError):
            table.flush()
    finally:
        os.kill(process, signal.SIGCONT)
    assert table.find(keys)[1].all()


def test_a_table_is_opened_again_with_its_map(sharded, tmp_path):
    table = sharded(4, name="again", shards=2)
    keys = np.arange(5000)
    table.insert(keys, rows_of(keys, dim=4))
    table.reshard(3)
    version = table.map_version
    table.shutdown()
    table = sharded(4, name="again", shards=2)
    assert (table.shards, table.map_version) == (3, version)
    assert (table.find(keys)[0] == rows_of(keys, dim=4)).all() and len(table) == 5000


def test_a_dataset_is_loaded_by_its_tasks(sharded):
    pytest.importorskip("pyarrow", reason="ray.data needs pyarrow and pandas")
    pytest.importorskip("pandas", reason="ray.data needs pyarrow and pandas")
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    table = sharded(4, shards=2)
    dataset = ray.data.range(3000).map_batches(
        lambda batch: {"k": batch["id"], "v": np.repeat(batch["id"][:, None] * 1.0, 4, axis=1)}
    )
    with pytest.raises(errors.InvalidArgumentError, match="no column w"):
        table.load(dataset, key="k", row="w")
    assert table.load(dataset, key="k", row="v", batch=500) == 3000
    assert (table.find(np.arange(3000))[0] == rows_of(np.arange(3000), dim=4)).all()
    # Lookups inside tasks: a handle travels with the function.
    looked_up = ray.data.range(100).map_batches(
        lambda batch: {"sum": table.find(batch["id"])[0].sum(axis=1)}
    )
    assert looked_up.sum("sum") == 4 * sum(range(100))


def test_a_fork_refuses_calls(sharded):
    table = sharded(4, shards=1)
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
