"""A Ray cluster of two local nodes, and sharded tables on it, for the tests of a module."""

import os

import pytest
import ray
from forerun import errors
from forerun.ray import ShardedTable
from ray_actors import PATIENCE_S

TIMEOUT_MS = 1000 * PATIENCE_S
NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    # Nothing of these tests needs a token, and a token would be written to the home directory.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # Otherwise workers have a niceness of 15, and get nowhere while the machine does other work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    head = {
        **NODE,
        # Processes that these tests have no use for.
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
        # A node that ended refuses connections, and is noticed after a second. One on a very busy
        # machine is slow, and has a minute for each answer.
        "_system_config": {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 300,
            "health_check_timeout_ms": 60_000,
            "health_check_failure_threshold": 3,
        },
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**NODE)
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
        options.setdefault("timeout_ms", TIMEOUT_MS)
        made.append(ShardedTable(*args, **options))
        return made[-1]

    make.made = made
    yield make
    for table in made:
        try:
            table.shutdown()
        except (errors.Error, ray.exceptions.RayError, ValueError):
            pass
