"""Handles belong to the process that opened them: in a fork, calls fail and change nothing."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from importlib.util import find_spec
from pathlib import Path

import forerun
import numpy as np
import pytest
from forerun.errors import ForkedError, LockedError
from memcached import any_kind, started

EXAMPLES = Path(__file__).parent.parent / "examples"
ROWS = 20_000
DIM = 8

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    # Newer Pythons warn about a fork in a process with threads, which is what these tests do.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]


class Child:
    """Runs `work` in a fork. `exits` ends it like a program, with destructors and the functions
    registered by atexit."""

    def __init__(self, work, *, exits=False):
        self.errors, write = os.pipe()
        self.process = os.fork()
        if self.process > 0:
            os.close(write)
            return
        # Kills a child that hangs.
        signal.alarm(60)
        code = 0
        try:
            work()
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-4000:])
            code = 1
        if exits and code == 0:
            # Ends without the test runner, whose own handlers must not run in the child.
            import atexit
            import gc

            gc.collect()
            atexit._run_exitfuncs()
        os._exit(code)

    def wait(self):
        status = os.waitpid(self.process, 0)[1]
        said = os.read(self.errors, 4096).decode() if os.WIFEXITED(status) and status else ""
        os.close(self.errors)
        assert status == 0, f"the child ended with status {status:#x}\n{said}"


def open_table(path, **options):
    return forerun.Table(DIM, path=path, host_capacity=1000, cache_bytes=4 << 20, **options)


def fill(table):
    keys = np.arange(ROWS)
    table.insert(keys, np.repeat(keys, DIM).reshape(-1, DIM).astype(np.float32))


def check_reads(table, seed, batches=20):
    random = np.random.default_rng(seed)
    for _ in range(batches):
        keys = random.integers(0, ROWS, 256)
        rows, found = table.find(keys)
        assert found.all() and (rows == keys[:, None]).all()


def test_children_of_a_process_that_reads_get_errors_and_leave_its_reads_alone(tmp_path):
    table = open_table(tmp_path / "table")
    fill(table)
    check_reads(table, 0)

    def work():
        for _ in range(100):
            with pytest.raises(ForkedError, match=str(os.getppid())):
                table.find([1])

    children = [Child(work, exits=True) for _ in range(3)]
    check_reads(table, 1, 200)
    for child in children:
        child.wait()
    table.close()
    check_reads(open_table(tmp_path / "table"), 2)


def test_a_childs_writes_are_refused_and_its_parent_loses_nothing(tmp_path):
    db = forerun.Db(tmp_path / "db")
    db["start"] = b"1"

    def work():
        for number in range(2000):
            with pytest.raises(ForkedError):
                db.put(f"c{number:06}", b"child")

    child = Child(work, exits=True)
    for number in range(2000):
        db.put(f"p{number:06}", b"parent")
    child.wait()
    db.close()
    with forerun.Db(tmp_path / "db") as db:
        assert sum(1 for _ in db.keys(prefix="p")) == 2000
        assert len(db) == 2001


def test_every_call_on_every_handle_is_refused_in_a_child(tmp_path):
    table, db, cache = open_table(tmp_path / "table"), forerun.Db(tmp_path / "db"), forerun.Cache()
    client = forerun.Client("127.0.0.1:1")
    fill(table)
    db["key"] = cache["key"] = b"value"
    users, snapshot = db.keyspace("users"), db.snapshot()
    iterators = [
        iter(db),
        iter(users),
        iter(snapshot),
        iter(table),
        iter(table.export(10)),
        iter(cache),
    ]
    next(iterators[0]), next(iterators[3]), next(iterators[4])
    batch = db.batch()
    batch.put("key", b"child")
    rows = np.zeros((1, DIM), np.float32)
    calls = {
        "db": [
            lambda: db.get("key"),
            lambda: db["key"],
            lambda: "key" in db,
            lambda: len(db),
            lambda: bool(db),
            lambda: db.multi_get(["key"]),
            lambda: db.put("key", b"child"),
            lambda: db.put_many(["key"], [b"child"]),
            lambda: db.delete("key"),
            lambda: db.delete_range("a", "z"),
            lambda: db.items(),
            lambda: db.keyspace("users"),
            lambda: db.keyspaces(),
            lambda: db.drop_keyspace("users"),
            lambda: db.batch(),
            lambda: db.snapshot(),
            lambda: db.sync(),
            lambda: db.flush(),
            lambda: db.compact(),
            lambda: db.wait_idle(),
            lambda: db.checkpoint(tmp_path / "copy"),
            lambda: db.stats(),
            lambda: batch.__exit__(None, None, None),
            lambda: users.put("key", b"child"),
            lambda: users.get("key"),
            lambda: snapshot["key"],
            lambda: snapshot.keyspace(users),
        ],
        "table": [
            lambda: table.find([1]),
            lambda: table.get(1),
            lambda: table[1],
            lambda: 1 in table,
            lambda: len(table),
            lambda: bool(table),
            lambda: table.contains([1]),
            lambda: table.insert([1], rows),
            lambda: table.import_rows([1], rows),
            lambda: table.assign([1], rows),
            lambda: table.add_at([1], rows),
            lambda: table.erase([1]),
            lambda: table.prefetch([1]),
            lambda: table.wait_idle(),
            lambda: table.export(),
            lambda: table.items(),
            lambda: table.flush(),
            lambda: table.checkpoint(tmp_path / "copy"),
            lambda: table.stats(),
            lambda: table.device,
            lambda: table.gpu,
        ],
        "cache": [
            lambda: cache.get("key"),
            lambda: cache["key"],
            lambda: "key" in cache,
            lambda: len(cache),
            lambda: cache.multi_get(["key"]),
            lambda: cache.set("key", b"child"),
            lambda: cache.set_many(["key"], [b"child"]),
            lambda: cache.delete("key"),
            lambda: cache.touch("key"),
            lambda: cache.increment("key"),
            lambda: cache.clear(),
            lambda: cache.stats(),
            lambda: cache.items(),
        ],
        "client": [
            lambda: client.get("key"),
            lambda: client.multi_get(["key"]),
            lambda: client.set("key", b"child"),
            lambda: client.set_many(["key"], [b"child"]),
            lambda: client.delete("key"),
            lambda: client.delete_many(["key"]),
            lambda: client.touch("key"),
            lambda: client.increment("key"),
            lambda: client.clear(),
            lambda: client.stats(),
            lambda: client.servers,
        ],
        "iterators": [lambda at=at: list(iterators[at]) for at in (1, 2, 4, 5)],
        "close": [db.close, table.close, cache.close, client.close],
    }

    def work():
        for name, those in calls.items():
            for number, call in enumerate(those):
                try:
                    call()
                except ForkedError:
                    continue
                raise AssertionError(f"{name} {number} was not refused")
        # These only describe the handle and do not use it.
        assert "Db" in repr(db) and table.dim == DIM
        assert repr(client) == "forerun.Client(of another process)"

    child = Child(work)
    child.wait()
    assert db["key"] == cache["key"] == b"value" and len(table) == ROWS
    assert len(list(iterators[5])) == 1 and snapshot["key"] == b"value"
    for handle in (client, cache, table, db):
        handle.close()
        assert handle.closed


@pytest.mark.parametrize("is_full", [False, True])
def test_a_child_does_not_wait_for_the_thread_of_a_listener(tmp_path, is_full):
    told, go_on = [], threading.Event()

    def listener(event):
        told.append(event["event"])
        go_on.wait(60)

    held = {"db": forerun.Db(tmp_path / "db", event_listener=listener)}
    if is_full:
        # More events than may wait: each flush has two.
        for number in range(600):
            held["db"][f"{number}"] = b"value"
            held["db"].flush()

    def work():
        with pytest.raises(ForkedError):
            held["db"].close()
        held.clear()

    Child(work, exits=True).wait()
    go_on.set()
    held["db"]["key"] = b"value"
    held["db"].flush()
    held["db"].close()
    assert "flush_begun" in told and ("events_lost" in told) == is_full


def test_a_child_that_drops_a_client_leaves_the_connections_to_its_parent():
    with started(2, any_kind()) as servers:
        held = {"client": forerun.Client([server.address for server in servers])}
        keys = [b"key%d" % key for key in range(50)]
        held["client"].set_many(keys, keys)

        def work():
            with pytest.raises(ForkedError):
                held["client"].multi_get(keys)
            with held["client"]:
                pass
            held.clear()

        Child(work, exits=True).wait()
        for _ in range(20):
            assert held["client"].multi_get(keys) == keys
        stats = held["client"].stats()
        assert (stats["server_failures"], stats["idle_connection_sets"]) == (0, 1)


@pytest.mark.parametrize("writes", ["through", "back"])
@pytest.mark.parametrize("exits", [False, True])
def test_handles_dropped_by_a_child_still_work_in_its_parent(tmp_path, writes, exits):
    handles = {
        "table": open_table(tmp_path / "table", writes=writes),
        "db": forerun.Db(tmp_path / "db"),
        "cache": forerun.Cache(),
    }
    fill(handles["table"])
    handles["db"]["key"] = handles["cache"]["key"] = b"value"
    handles["snapshot"] = handles["db"].snapshot()
    handles["items"] = iter(handles["db"])
    next(handles["items"])
    child = Child(handles.clear, exits=exits)
    child.wait()
    check_reads(handles["table"], 5)
    with pytest.raises(LockedError, match=str(os.getpid())):
        forerun.Db(tmp_path / "db")
    assert handles["snapshot"]["key"] == handles["cache"]["key"] == b"value"
    handles["db"]["other"] = b"value"
    handles["table"].close()
    handles["db"].close()
    assert len(forerun.Db(tmp_path / "db")) == 2
    with open_table(tmp_path / "table") as table:
        assert len(table) == ROWS


def test_a_child_that_leaves_a_with_block_closes_nothing(tmp_path):
    with forerun.Db(tmp_path / "db") as db, open_table(tmp_path / "table") as table:
        db["key"] = b"value"
        fill(table)
        process = os.fork()
        if process == 0:
            signal.alarm(60)
        else:
            assert os.waitpid(process, 0)[1] == 0
            assert db["key"] == b"value" and len(table) == ROWS
    if process == 0:
        os._exit(0)


def test_a_child_can_open_its_own_handles(tmp_path):
    table = open_table(tmp_path / "table")
    fill(table)
    check_reads(table, 0)
    table.checkpoint(tmp_path / "copy")

    def work():
        with open_table(tmp_path / "copy") as own:
            check_reads(own, 3, 50)
            own.erase([1])
            assert len(own) == ROWS - 1

    child = Child(work, exits=True)
    check_reads(table, 4, 50)
    child.wait()
    assert len(table) == ROWS


def test_a_fork_beside_busy_threads_never_hangs(tmp_path):
    table, db, stop = open_table(tmp_path / "table"), forerun.Db(tmp_path / "db"), threading.Event()
    fill(table)

    def read(seed):
        while not stop.is_set():
            check_reads(table, seed, 1)

    def write():
        for number in range(10**9):
            if stop.is_set():
                return
            db[str(number)] = b"value"
            list(zip(range(3), table.export(10)))

    threads = [threading.Thread(target=read, args=(1,)), threading.Thread(target=write)]
    for thread in threads:
        thread.start()

    def work():
        for call in (
            lambda: table.find([1]),
            lambda: db["1"],
            lambda: db.put("1", b"1"),
            table.close,
            db.close,
        ):
            with pytest.raises(ForkedError):
                call()

    try:
        for _ in range(10):
            Child(work, exits=True).wait()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def look_up(path):
    with open_table(path) as table:
        check_reads(table, 7)
        return len(table)


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
def test_processes_open_what_they_read(tmp_path, start):
    table = open_table(tmp_path / "table")
    fill(table)
    check_reads(table, 0)
    paths = [tmp_path / f"worker-{number}" for number in range(2)]
    for path in paths:
        table.checkpoint(path)
    with multiprocessing.get_context(start).Pool(2) as pool:
        found = pool.map_async(look_up, paths, chunksize=1)
        check_reads(table, 1, 50)
        assert found.get(timeout=120) == [ROWS, ROWS]


def test_pickling_errors_say_what_to_send_instead(tmp_path):
    for handle in (open_table(tmp_path / "table"), forerun.Db(tmp_path / "db")):
        with pytest.raises(forerun.errors.InvalidArgumentError, match="path"):
            pickle.dumps(handle)


class Inherited:
    """A data set that holds an open table, which it should not."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return 10

    def __getitem__(self, position):
        return self.table[position]


def test_a_worker_that_uses_an_inherited_table_fails_with_the_error(tmp_path):
    data = pytest.importorskip("torch.utils.data", reason="PyTorch is not installed")
    table = open_table(tmp_path / "table")
    fill(table)
    check_reads(table, 0)
    loader = data.DataLoader(Inherited(table), num_workers=2, multiprocessing_context="fork")
    with pytest.raises(ForkedError, match="fork"):
        list(loader)
    check_reads(table, 1)


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
def test_workers_of_a_data_loader_read_rows(tmp_path, start):
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    command = [
        sys.executable,
        str(EXAMPLES / "workers.py"),
        "--start",
        start,
        "--workers",
        "2",
        "--rows",
        "3000",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3000 rows") == 2, done.stdout
