"""Arguments of a `ShardedTable` that differ from those of a table that runs, and calls of a process
that is not connected to Ray."""

import os
import subprocess
import sys

import pytest
from forerun import errors

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'forerun[ray]'")

from forerun.ray import ShardedTable  # noqa: E402
from ray_actors import PATIENCE_S  # noqa: E402
from ray_cluster import TIMEOUT_MS, cluster, sharded  # noqa: E402, F401


def test_a_running_table_refuses_other_arguments_and_names_both_values(
    sharded, tmp_path  # noqa: F811
):
    made = {"path": tmp_path / "shards", "backups": tmp_path / "backups", "memory": "64MiB"}
    table = sharded(4, name="given", shards=2, **made)

    def again(**changes):
        """Another constructor with the arguments of the first one, but for these."""
        given = {"shards": 2, "timeout_ms": TIMEOUT_MS, **made, **changes}
        return ShardedTable(4, name="given", **given)

    for option, value, known in (
        ("path", tmp_path / "other", str(tmp_path / "shards")),
        ("backups", tmp_path / "other", str(tmp_path / "backups")),
        ("memory", "32MiB", "64MiB"),
        ("shards", 3, 2),
        ("bind", "node", "127.0.0.1"),
        ("num_cpus", 0.5, 0),
        ("nodes", ["somewhere"], None),
        ("connections_max", 5, 1024),
        ("evict_strategy", "lru", "lfu"),
        ("admission", "always", "second_touch"),
    ):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            again(**{option: value})
        shown = str(value) if isinstance(value, os.PathLike) else value
        if option == "nodes":
            shown = tuple(value)
        assert f"{option}={known!r}, not {shown!r}" in str(caught.value)
    assert not (tmp_path / "other").exists()
    # Those that mean the same, and those that are not given.
    again().close()
    again(memory=64 << 20, bind="127.0.0.1", num_cpus=0.0, evict_strategy="lfu").close()
    again(shards=None, backups=None, memory=None).close()
    # The number with which a table was made stays right when it has grown.
    table.reshard(3)
    for shards in (2, 3):
        again(shards=shards).close()
    with pytest.raises(errors.InvalidArgumentError, match="shards=3, not 4"):
        again(shards=4)


def test_shards_are_not_given_a_share_of_their_nodes_memory(tmp_path, sharded):  # noqa: F811
    with pytest.raises(errors.InvalidArgumentError, match="give each a size"):
        sharded(4, name="greedy", path=tmp_path, memory="auto")
    assert not any(tmp_path.iterdir())


_AFTER_SHUTDOWN = """
import sys
import numpy as np, ray
from forerun import errors
from forerun.ray import ShardedTable

address, name, path = sys.argv[1:]


def refuses(calls, words):
    for call in calls:
        try:
            call()
        except errors.ClosedError as error:
            assert words in str(error), error
        else:
            raise AssertionError("no error")
        assert ray.is_initialized() == is_connected


def connect():
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)


is_connected, keys = False, np.arange(3)
constructors = [lambda: ShardedTable(4, name=name, path=path), lambda: ShardedTable.attach(name)]
refuses(constructors, "ray.init()")
connect()
tables = [ShardedTable.attach(name, transport=transport) for transport in ("tcp", "actor")]
for table in tables:
    table.find(keys)
exports = [table.export() for table in tables]
ray.shutdown()
for table in tables:
    calls = [
        lambda: table.find(keys),
        lambda: table.insert(keys, np.zeros((3, 4), np.float32)),
        lambda: table.export(),
        lambda: table.load(None, key="k", row="r"),
        lambda: table.to_dataset(),
        lambda: table.reshard(2),
        lambda: table.backup(),
        lambda: table.shutdown(),
        table.flush,
        table.stats,
        table.__len__,
    ]
    refuses(calls, "ray.init()")
refuses([lambda: next(exports[1])], "ray.init()")
# Another connection to the same cluster: Ray knows the actors of the former one no longer.
connect()
is_connected = True
refuses([lambda: tables[1].find(keys), tables[0].stats], "ShardedTable.attach")
for table in tables:
    table.close()
with ShardedTable.attach(name) as table:
    table.find(keys)
print("done")
"""


def test_a_call_after_rays_shutdown_is_an_error_and_starts_no_cluster(
    cluster, sharded, tmp_path  # noqa: F811
):
    table = sharded(4)
    script = [sys.executable, "-c", _AFTER_SHUTDOWN]
    ran = subprocess.run(
        [*script, cluster.address, table.name, tmp_path / "nowhere"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.stdout.endswith("done\n"), ran.stderr
    assert not (tmp_path / "nowhere").exists()
