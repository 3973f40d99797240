"""The benchmarks run at a tiny size and report what they measured."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from memcached import any_kind, command as server_command

BENCH = Path(__file__).parent.parent / "bench"


def run(directory, script, *arguments):
    command = [sys.executable, str(BENCH / script), "--quick", "--json", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_engine_access_budget_and_batch_has_a_line(tmp_path):
    trace = tmp_path / "reads.trace"
    np.random.default_rng(3).integers(0, 500, 3000).astype(">u4").tofile(trace)
    peers = {"numpy", "numpy-take"} | {
        name
        for name, module in [
            ("lmdb", "lmdb"),
            ("rocksdb", "rocksdict"),
            ("rocksdb-multi", "rocksdict"),
        ]
        if find_spec(module)
    }
    lines = run(
        tmp_path, "table.py", "--rows", "2000", "--dim", "8", "--batch", "16,256",
        "--budget", "0.1,1", "--peer",
        ",".join(peers), "--access", f"zipf:1,trace:{trace}",
    )  # fmt: skip
    cells = {(line["engine"], line["case"], line["beside_budget"], line["batch"]) for line in lines}
    assert len(cells) == len(lines) == (len(peers) + 1) * 2 * 2 * 2
    assert all(line["keys_per_second"] > 0 for line in lines)
    ours = [line for line in lines if line["engine"] == "forerun"]
    assert all(
        abs(line["host_hit_rate"] + line["store_hit_rate"] + line["device_hit_rate"] - 1) < 1e-9
        for line in ours
    )
    assert all(line["host_hit_rate"] == 1 for line in ours if line["budget"] == 1)
    assert {line["keys"] for line in lines} == {2000, len(np.unique(np.fromfile(trace, ">u4")))}


def test_a_plot_is_drawn(tmp_path):
    if find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    plot = tmp_path / "table.png"
    run(
        tmp_path,
        "table.py",
        "--rows",
        "500",
        "--batch",
        "64",
        "--budget",
        "1",
        "--peer",
        "numpy",
        "--plot",
        str(plot),
    )
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_pooled_bags_are_compared_with_collected_rows(tmp_path):
    pytest.importorskip("torch")
    lines = run(tmp_path, "embedding_bag.py", "--mode", "sum,mean", "--grad", "no,yes")
    cells = {(line["engine"], line["mode"], line["grad"]) for line in lines}
    assert len(cells) == len(lines) == 3 * 2 * 2
    assert all(line["bags_per_second"] > 0 and line["ratio_to_collected"] > 0 for line in lines)


def test_the_cost_of_a_call_is_reported(tmp_path):
    lines = run(tmp_path, "overhead.py", "--rows", "2000", "--dim", "8", "--batch", "1,64")
    assert [line["strategy"] for line in lines[:4]] == [
        "engine",
        "out and found",
        "out",
        "nothing given",
    ]
    assert lines[0]["overhead_share"] == 0 and len(lines) == 8


def test_every_client_number_of_servers_and_batch_has_a_line(tmp_path, monkeypatch):
    kind = any_kind()
    if kind == "forerun":
        monkeypatch.setenv("FORERUN_COMMAND", server_command(kind))
    clients = {"forerun", "forerun-rows", "forerun-asyncio"}
    clients |= {"pymemcache"} if find_spec("pymemcache") else set()
    lines = run(tmp_path, "client.py", "--program", kind, "--servers", "1,3", "--batch", "1,20")
    cells = {(line["engine"], line["servers"], line["batch"]) for line in lines}
    assert cells == {(c, s, b) for c in clients for s in (1, 3) for b in (1, 20)}
    assert all(line["keys_per_second"] > 0 for line in lines)


def test_every_way_to_a_table_in_shards_has_a_line(tmp_path):
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    lines = run(tmp_path, "ray_table.py", "--shards", "2", "--batch", "16,200", "--dim", "8")
    has_redis = find_spec("redis") is not None and shutil.which("redis-server") is not None
    engines = {"sharded", "sockets", "actors"} | ({"redis"} if has_redis else set())
    cells = {(line["engine"], line["batch"]) for line in lines}
    assert cells == {(engine, batch) for engine in engines for batch in (16, 200)}
    assert all(line["keys_per_second"] > 0 for line in lines)


def test_invalid_arguments_are_refused_with_a_message(tmp_path):
    for arguments, word in [
        (["--peer", "sqlite"], "sqlite"),
        (["--access", "normal"], "normal"),
        (["--budget", "2"], "budget"),
    ]:
        command = [sys.executable, str(BENCH / "table.py"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and word in done.stderr


def test_every_engine_of_the_hot_pool_has_a_line(tmp_path):
    lines = run(tmp_path, "hot_pool.py", "--new", "0.1,0.5")
    cells = {(line["engine"], line["new"]) for line in lines}
    assert len(lines) == len(cells) == 4 * 2
    assert all(line["positions_per_second"] > 0 for line in lines)
    assert all(line["ratio_to_loop"] == 1 for line in lines if line["engine"] == "loop")
