"""A batch that does not fit in the address space raises `MemoryError`, and the process goes on."""

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import resource, sys, forerun, numpy as np
    count = 150_000
    keys, rows = np.arange(count), np.zeros((count, 4), np.uint8)
    table, other = forerun.Table(4, "uint8"), forerun.Table(4, "uint8", path=sys.argv[1] + "/rows")
    fresh = forerun.Table(4, "uint8")
    db, cache = forerun.Db(sys.argv[1] + "/store"), forerun.Cache("64MiB")
    names = [b"%d" % key for key in range(count // 2)]
    row = np.zeros((1, 4), np.uint8)
    out, found = np.zeros((count, 4), np.uint8), np.zeros(count, bool)
    if "table" in sys.argv[2]:
        table.insert(keys, rows)
    if "other.export" in sys.argv[2]:
        other.insert(keys, rows)
    call = eval("lambda: " + sys.argv[2])
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    # Less than the batch needs, and enough for the interpreter.
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 19), resource.RLIM_INFINITY))
    try:
        call()
        print("it fits")
    except MemoryError:
        print("MemoryError")
    # All handles are still usable.
    table.insert([5], row)
    db.put("a", "b")
    cache.set("a", "b")
    assert table.contains([5]).all() and db["a"] == cache["a"] == b"b"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is read from /proc")
@pytest.mark.parametrize(
    "call",
    [
        "table.insert(list(range(count)), rows)",
        "table.find(keys)",
        "table.contains(keys)",
        "table.assign(keys, rows)",
        "table.erase(keys)",
        "list(table.export(1000))",
        "list(table.export(count))",
        "list(table)",
        "list(other.export(count))",
        "fresh.insert(keys, rows)",
        "other.insert(keys, rows)",
        "db.put_many(keys, rows)",
        "db.put_many(names, names)",
        "db.multi_get(names)",
        "db.multi_get(keys, out=out)",
        "cache.set_many(keys, rows)",
        "cache.multi_get(names)",
        "cache.multi_get(keys, out=out)",
    ],
)
def test_a_batch_that_does_not_fit_in_memory_raises(tmp_path, call):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), call],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("MemoryError\n", "it fits\n")
