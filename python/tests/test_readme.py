"""The code blocks of the README run in order."""

import importlib.util
import pathlib
import re

import forerun
import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"


def blocks():
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def can_run(block):
    if "torch" in block and importlib.util.find_spec("torch") is None:
        return False
    return 'device="cuda"' not in block or bool(forerun.device_info()["gpus"])


def test_the_readme_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    ran = [block for block in blocks() if can_run(block)]
    for block in ran:
        try:
            exec(compile(block, str(README), "exec"), names)
        except Exception as error:
            pytest.fail(f"{error!r} in:\n{block}")
    assert len(ran) >= 5, "too few blocks were found"
    assert names["found"].tolist() == [True, False, True]
    assert "b'bonn'" in capsys.readouterr().out
