"""`forerun.torch` against `torch.nn`."""

import forerun
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from forerun.torch import Embedding, EmbeddingBag  # noqa: E402

ROWS = torch.randn(100, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def table():
    table = forerun.Table(8)
    table.insert(torch.arange(100), ROWS)
    return table


def test_gives_the_rows_that_torch_gives(table):
    keys = torch.randint(0, 100, (5, 7))
    assert torch.equal(Embedding(table)(keys), torch.nn.Embedding.from_pretrained(ROWS)(keys))
    padded = Embedding(table, padding_idx=3)(torch.tensor([3, 4]))
    assert torch.equal(padded, torch.stack([torch.zeros(8), ROWS[4]]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("shape", ["matrix", "offsets", "last offset"])
def test_bags_are_reduced_and_their_gradients_spread_as_torch_does(table, mode, padding_idx, shape):
    torch.manual_seed(2)
    options = {"mode": mode, "include_last_offset": shape == "last offset"}
    ours = EmbeddingBag(table, padding_idx=padding_idx, **options)
    theirs = torch.nn.EmbeddingBag.from_pretrained(ROWS.clone(), freeze=False, padding_idx=padding_idx, **options)
    keys = torch.randint(0, 10, (6, 4) if shape == "matrix" else (24,))
    offsets = {"matrix": None, "offsets": torch.tensor([0, 0, 5, 17]), "last offset": torch.tensor([0, 5, 17, 24])}[shape]
    one, other = ours(keys, offsets), theirs(keys, offsets)
    torch.testing.assert_close(one, other)

    weights = torch.randn_like(one)
    (one * weights).sum().backward()
    (other * weights).sum().backward()
    touched, sums = ours.collected_gradients()
    torch.testing.assert_close(torch.zeros(100, 8).index_add(0, touched, sums), theirs.weight.grad)
    ours.apply_gradients(lr=0.5)
    after, _ = table.find(np.arange(100))
    torch.testing.assert_close(torch.from_numpy(after), (theirs.weight - 0.5 * theirs.weight.grad).detach())
    assert len(ours.collected_gradients()[0]) == 0


def test_weights_of_samples_count_and_have_gradients(table):
    keys, offsets = torch.tensor([1, 2, 3, 1]), torch.tensor([0, 2])
    theirs = torch.nn.EmbeddingBag.from_pretrained(ROWS, mode="sum")
    results = []
    for bag in (EmbeddingBag(table, mode="sum"), theirs):
        weights = torch.tensor([0.5, 2.0, -1.0, 3.0], requires_grad=True)
        out = bag(keys, offsets, per_sample_weights=weights)
        out.square().sum().backward()
        results.append((out.detach(), weights.grad))
    torch.testing.assert_close(results[0], results[1])


def test_rows_that_are_missing_are_made_while_training_only():
    table = forerun.Table(8)
    words = Embedding(table, initialize=lambda count: torch.full((count, 8), 2.0))
    words.eval()
    assert words(torch.tensor([7])).sum() == 0 and len(table) == 0
    words.train()
    assert words(torch.tensor([7, 9, 7])).sum() == 48 and len(table) == 2


def test_learns(table):
    torch.manual_seed(3)
    words, keys, wanted = Embedding(table), torch.arange(100), torch.randn(100, 8)
    losses = []
    for _ in range(50):
        loss = (words(keys) - wanted).square().sum()
        losses.append(loss.item())
        loss.backward()
        words.apply_gradients(lr=0.1)
    assert losses[-1] < 1e-3 * losses[0]


def test_operators_are_registered_as_torch_wants_them(table):
    words = Embedding(table)
    arguments = (torch.tensor([[1, 2], [3, 99]]), words._gate, words._number, 8)
    torch.library.opcheck(torch.ops.forerun.find.default, arguments)


def test_is_traced_whole(table):
    bag = EmbeddingBag(table, mode="sum")
    keys = torch.randint(0, 100, (5, 7))
    compiled = torch.compile(bag, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(keys), bag(keys))
    compiled(keys).sum().backward()
    assert len(bag.collected_gradients()[0]) == len(torch.unique(keys))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_types_work_as_well(dtype):
    table = forerun.Table(4, dtype)
    rows = torch.randn(10, 4).to(getattr(torch, dtype))
    words = Embedding(table, initialize=lambda count: rows[:count])
    assert torch.equal(words(torch.arange(10)), rows)


def test_what_does_not_fit_is_refused_by_words(table):
    with pytest.raises(forerun.errors.InvalidArgumentError, match="int64"):
        Embedding(table)(torch.tensor([1.0]))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="int32"):
        Embedding(forerun.Table(4, "int32"))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="mode"):
        EmbeddingBag(table, mode="median")
    with pytest.raises(forerun.errors.InvalidArgumentError, match="offsets"):
        EmbeddingBag(table)(torch.tensor([1]))


def test_a_lookup_writes_into_the_tensors_it_is_given(table):
    keys, out, found = torch.tensor([[3, 200], [4, 5]]), torch.full((2, 2, 8), 7.0), torch.zeros(2, 2, dtype=torch.bool)
    given, _ = table.find(keys, out=out, found=found)
    assert given is out and found.tolist() == [[True, False], [True, True]]
    assert torch.equal(out[0, 0], ROWS[3]) and torch.equal(out[1, 1], ROWS[5]) and (out[0, 1] == 7).all()
    assert np.array_equal(torch.from_dlpack(table.find(keys)[0])[1], ROWS[4:6])


def test_what_a_tensor_cannot_give_is_said(table):
    with pytest.raises(forerun.errors.InvalidArgumentError, match="grad"):
        table.insert([1], torch.zeros(1, 8, requires_grad=True))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="contiguous"):
        table.find([1] * 8, out=torch.zeros(8, 8).T)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="float64"):
        table.insert([1], torch.zeros(1, 8, dtype=torch.float64))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="DLPack"):
        table.find([1], out=torch.zeros(1, 8, dtype=torch.bfloat16))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="meta"):
        Embedding(table)(torch.zeros(3, dtype=torch.int64, device="meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
def test_rows_of_a_lookup_end_in_a_tensor_on_the_gpu_behind_what_is_on_the_current_stream():
    table = forerun.Table(8, device_capacity=16)
    table.insert(torch.arange(100), ROWS)
    table.prefetch(np.arange(10))
    table.settle()
    keys = torch.cat([torch.arange(99, -1, -7), torch.tensor([5000, 3, 3])])
    with torch.cuda.stream(torch.cuda.Stream()):
        # Under way still when the lookup begins, and written over by it.
        out = torch.full((len(keys), 8), 9.0, device="cuda")
        given, found = table.find(keys, out)
        there = given.cpu()
    assert given is out and found.sum() == len(keys) - 1
    expected = torch.full((len(keys), 8), 9.0)
    expected[torch.from_numpy(found)] = ROWS[keys[torch.from_numpy(found)]]
    assert torch.equal(there, expected)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="no device tier on a GPU"):
        forerun.Table(8).find(keys, out)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.parametrize("device_capacity", [0, 16])
def test_an_embedding_gives_rows_where_its_keys_are(device_capacity):
    table = forerun.Table(8, device_capacity=device_capacity)
    table.insert(torch.arange(100), ROWS)
    table.prefetch(np.arange(10))
    table.settle()
    assert table.gpu == (0 if device_capacity else None)
    keys = torch.tensor([[3, 70, 5000], [3, 99, 0]], device="cuda")
    rows = Embedding(table)(keys)
    assert rows.is_cuda
    expected = torch.where((keys.cpu() < 100).unsqueeze(-1), ROWS[keys.cpu().clamp(max=99)], 0.0)
    assert torch.equal(rows.detach().cpu(), expected)
