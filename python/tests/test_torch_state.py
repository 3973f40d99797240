"""Modules of `forerun.torch` as PyTorch creates, moves, saves and copies modules."""

import copy
import io
import pickle

import forerun
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from forerun.torch import SGD, Embedding, EmbeddingBag  # noqa: E402

ROWS = torch.randn(100, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def table():
    table = forerun.Table(8)
    table.insert(torch.arange(100), ROWS)
    return table


def made(table):
    return torch.nn.Sequential(EmbeddingBag(table, mode="sum"), torch.nn.Linear(8, 1))


MODULES = [
    lambda table: Embedding(table),
    lambda table: EmbeddingBag(table, mode="sum"),
    lambda table: EmbeddingBag(table, mode="max"),
    lambda table: EmbeddingBag(table, mode="sum").double(),
]


@pytest.mark.parametrize("make", MODULES)
def test_a_module_is_the_same_whatever_the_default_device_is(table, make):
    keys = torch.tensor([[1, 2], [3, 4]])
    words = make(table)
    expected = words(keys).detach()
    expected.sum().item()
    with torch.device("meta"):
        answer = words(keys)
        answer.sum().backward()
    assert torch.equal(answer, expected)
    assert words.collected_gradients()[0].tolist() == [1, 2, 3, 4]
    SGD(words, lr=0.0).step()
    # Frameworks create modules on the meta device, and their memory later.
    with torch.device("meta"):
        words = make(table)
    for made in (words, words.to_empty(device="cpu")):
        made.zero_grad()
        answer = made(keys)
        answer.sum().backward()
        assert torch.equal(answer, expected) and answer.device.type == "cpu"
        assert made.collected_gradients()[0].tolist() == [1, 2, 3, 4]
        assert (made.autograd_anchor == 0).all()
    words.to("meta")
    with pytest.raises(forerun.errors.InvalidArgumentError, match="call `to_empty`"):
        words(keys)
    assert torch.equal(words.to_empty(device="cpu")(keys), expected)
    with torch.device("meta"):
        initialize = lambda count: torch.ones((count, 8), device="cpu")
        words = Embedding(forerun.Table(8), initialize=initialize)
        assert (words(keys) == 1).all()


def test_a_state_holds_no_rows_and_fits_whatever_was_collected(table):
    model = made(table)
    empty = copy.deepcopy(model.state_dict())
    names = ["0.autograd_anchor", "0._extra_state", "1.weight", "1.bias"]
    assert list(empty) == names and sum(value.numel() for value in empty.values()) == 12
    model(torch.arange(4).view(2, 2)).sum().backward()
    assert list(model.state_dict()) == names
    model.load_state_dict(empty)
    assert len(model[0].collected_gradients()[0]) == 4
    # Also where nothing but tensors is read.
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file, weights_only=True), assign=True)
    model(torch.arange(4).view(2, 2)).sum().backward()
    assert len(model[0].collected_gradients()[0]) == 4


def test_a_state_of_torchs_module_does_not_fit(table):
    theirs = torch.nn.Sequential(torch.nn.EmbeddingBag(10, 8), torch.nn.Linear(8, 1)).state_dict()
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: .0.weight"):
        made(table).load_state_dict(theirs)
    said = made(table).load_state_dict(theirs, strict=False)
    assert said.unexpected_keys == ["0.weight"]


def test_a_state_of_a_table_with_rows_does_not_fit_one_without(table, tmp_path):
    state = made(table).state_dict()
    empty = forerun.Table(8, path=tmp_path / "rows")
    with pytest.raises(forerun.errors.InvalidArgumentError, match="with 100 rows, but .* none"):
        made(empty).load_state_dict(state)
    empty.insert([1], ROWS[:1])
    made(empty).load_state_dict(state)
    narrow = torch.nn.Sequential(EmbeddingBag(forerun.Table(4)), torch.nn.Linear(8, 1))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="of 8 elements, .* of 4"):
        narrow.load_state_dict(state)
    # A script may save its model when the table is closed.
    model = made(empty)
    empty.close()
    made(forerun.Table(8)).load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    "act",
    [
        copy.deepcopy,
        pickle.dumps,
        lambda model: torch.save(model, io.BytesIO()),
        lambda model: torch.optim.swa_utils.AveragedModel(model),
    ],
)
def test_a_copy_of_a_model_is_refused_with_the_way_out(table, act):
    with pytest.raises(forerun.errors.InvalidArgumentError, match="table.checkpoint"):
        act(made(table))


def test_a_model_is_saved_and_resumed_with_its_table(tmp_path):
    table = forerun.Table(8, path=tmp_path / "rows")
    table.insert(torch.arange(100), ROWS)
    model, keys = made(table), torch.arange(6).view(2, 3)
    SGD(model, lr=0.1)
    table.checkpoint(tmp_path / "best")
    torch.save(model.state_dict(), tmp_path / "best.pt")
    expected = model(keys).detach()
    model(keys).sum().backward()
    SGD(model, lr=0.1).step()
    table.close()
    # Training goes on in a copy, so that the checkpoint stays what it is.
    with forerun.Table(8, path=tmp_path / "best") as best:
        best.checkpoint(tmp_path / "resumed")
    resumed = forerun.Table(8, path=tmp_path / "resumed")
    again = made(resumed)
    again.load_state_dict(torch.load(tmp_path / "best.pt"))
    assert torch.equal(again(keys), expected)
    again(keys).sum().backward()
    SGD(again, lr=0.1).step()
    assert not np.array_equal(resumed[1], ROWS[1])
    resumed.close()
    with forerun.Table(8, path=tmp_path / "best", read_only=True) as best:
        assert np.array_equal(best[1], ROWS[1])
