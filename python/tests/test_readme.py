"""The Python blocks of the documentation run, those of a page in order."""

import importlib.util
import pathlib
import re
import textwrap

import forerun
import pytest
from memcached import any_kind, started

ROOT = pathlib.Path(__file__).parents[2]
# Its blocks need a cluster, a dataset and a process group. test_ray.py, test_torch_sharded.py and
# examples/sharded.py make the same calls.
OF_A_CLUSTER = "docs/guide/ray.md"
# The page of the package, that of the project, and the guides.
PAGES = ["python/README.md", "README.md"] + sorted(
    name
    for page in (ROOT / "docs").rglob("*.md")
    if (name := str(page.relative_to(ROOT))) != OF_A_CLUSTER
)


def blocks(page):
    found = re.findall(r"^( *)```python\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def can_run(block):
    needs_torch = any(name in block for name in ("torch", "forerun.kvcacheio", "DataLoader"))
    if needs_torch and importlib.util.find_spec("torch") is None:
        return False
    return 'device="cuda"' not in block or bool(forerun.device_info()["gpus"])


def run(page, names):
    """Runs the blocks of a page with the same variables, and returns how many ran. The servers that
    a page names are servers of this test."""
    ran = [block for block in blocks(page) if can_run(block)]
    hosts = sorted({host for block in ran for host in re.findall(r'"(10\.0\.1\.\d+)"', block)})
    with started(len(hosts), any_kind() if hosts else None) as servers:
        for block in ran:
            for host, server in zip(hosts, servers):
                block = block.replace(f'"{host}"', f'"{server.address}"')
            try:
                exec(compile(block, str(page), "exec"), names)
            except Exception as error:
                pytest.fail(f"{error!r} in:\n{block}")
    return len(ran)


def promised(page):
    """Answers that blocks show as comments on expressions: `expression   # answer`."""
    for block in blocks(page):
        for line in block.splitlines():
            if match := re.fullmatch(r"(\S.*?\S)\s{2,}# (b'.*'|\[b'.*\])", line):
                yield match.groups()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(ROOT / page)])
def test_the_blocks_of_a_page_run_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    if not any(can_run(block) for block in blocks(ROOT / page)):
        pytest.skip("its blocks need PyTorch or a GPU")
    try:
        assert run(ROOT / page, names) >= 1
        if page == "python/README.md":
            assert names["found"].tolist() == [True, False, True]
    finally:
        for handle in list(names.values()):
            if isinstance(handle, (forerun.Db, forerun.Table, forerun.Cache, forerun.Client)):
                handle.close()


def test_blocks_were_found():
    assert {page: len(blocks(ROOT / page)) for page in PAGES if blocks(ROOT / page)} == {
        "python/README.md": 3,
        "README.md": 1,
        "docs/guide/cache.md": 3,
        "docs/guide/client.md": 2,
        "docs/guide/kvcacheio.md": 1,
        "docs/guide/python.md": 10,
    }


@pytest.mark.parametrize("page", ["docs/guide/cache.md", "docs/guide/python.md"])
def test_answers_are_as_the_page_shows_them(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    run(ROOT / page, names)
    answers = list(promised(ROOT / page))
    assert answers
    for expression, answer in answers:
        if expression.startswith("cache.get("):
            names["cache"].set("CH/Bern", b"46.948,7.447")
        assert eval(expression, names) == eval(answer), expression
    names.get("db", names.get("cache")).close()
