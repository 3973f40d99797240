"""`forerun.torch` compared with `torch.nn`."""

import threading

import forerun
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from forerun._torch_gradients import bits  # noqa: E402
from forerun.torch import Embedding, EmbeddingBag  # noqa: E402

ROWS = torch.randn(100, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def table():
    table = forerun.Table(8)
    table.insert(torch.arange(100), ROWS)
    return table


def test_returns_the_same_rows_as_torch(table):
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
    theirs = torch.nn.EmbeddingBag.from_pretrained(
        ROWS.clone(), freeze=False, padding_idx=padding_idx, **options
    )
    keys = torch.randint(0, 10, (6, 4) if shape == "matrix" else (24,))
    offsets = {
        "matrix": None,
        "offsets": torch.tensor([0, 0, 5, 17]),
        "last offset": torch.tensor([0, 5, 17, 24]),
    }[shape]
    one, other = ours(keys, offsets), theirs(keys, offsets)
    torch.testing.assert_close(one, other)

    weights = torch.randn_like(one)
    (one * weights).sum().backward()
    (other * weights).sum().backward()
    touched, sums = ours.collected_gradients()
    torch.testing.assert_close(torch.zeros(100, 8).index_add(0, touched, sums), theirs.weight.grad)
    ours.apply_gradients(lr=0.5)
    after, _ = table.find(np.arange(100))
    torch.testing.assert_close(
        torch.from_numpy(after), (theirs.weight - 0.5 * theirs.weight.grad).detach()
    )
    assert len(ours.collected_gradients()[0]) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("shape", ["matrix", "offsets", "last offset", "empty"])
def test_pooled_bags_are_those_of_collected_rows_bit_for_bit(dtype, mode, padding_idx, shape):
    random = torch.Generator().manual_seed(4)
    table = forerun.Table(8, str(dtype).removeprefix("torch."))
    table.insert(torch.arange(100), bits(ROWS.to(dtype)))
    # Keys from 100 on have no row.
    keys = torch.randint(0, 110, (40,), generator=random)
    keys[7:12] = 3
    offsets = {
        "matrix": None,
        "offsets": torch.tensor([0, 0, 7, 12, 40]),
        "last offset": torch.tensor([0, 7, 12, 40, 40]),
        "empty": torch.zeros(3, dtype=torch.int64),
    }[shape]
    keys = keys.view(8, 5) if shape == "matrix" else keys[:0] if shape == "empty" else keys
    weights = torch.randn(keys.shape, generator=random)
    for given in (None, weights) if mode == "sum" and dtype == torch.float32 else (None,):
        results = []
        for pools in (True, False):
            bag = EmbeddingBag(
                table,
                mode=mode,
                padding_idx=padding_idx,
                include_last_offset=shape == "last offset",
            )
            assert bag._is_pooled(keys, offsets, given)
            bag._can_pool = pools
            out = bag(keys, offsets, given)
            out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape))
            touched, sums = bag.collected_gradients()
            assert padding_idx not in touched.tolist() or not pools
            gradients = torch.zeros(110, 8, dtype=sums.dtype).index_add(0, touched, sums)
            results.append((out.detach(), gradients))
        assert results[0][0].dtype == dtype and torch.equal(results[0][0], results[1][0])
        # Collected rows have gradients of their own type.
        tolerance = {} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-3}
        torch.testing.assert_close(results[0][1], results[1][1], **tolerance)


def test_bags_that_pooled_lookups_would_round_otherwise_are_collected(table):
    keys, offsets = torch.tensor([1, 2, 3, 1]), torch.tensor([0, 2])
    weights = torch.ones(4)
    summed = EmbeddingBag(table, mode="sum")
    assert summed._is_pooled(keys, offsets, weights)
    assert not summed._is_pooled(keys, offsets, weights.requires_grad_())
    assert not summed._is_pooled(keys, offsets, torch.ones(4, dtype=torch.float64))
    assert not EmbeddingBag(table, mode="max")._is_pooled(keys, offsets, None)
    assert not EmbeddingBag(table).double()._is_pooled(keys, offsets, None)
    assert not EmbeddingBag(forerun.Table(8, "float64"))._is_pooled(keys, offsets, None)


def test_bags_create_missing_rows_only_while_training():
    table = forerun.Table(8)
    bag = EmbeddingBag(
        table, mode="sum", padding_idx=5, initialize=lambda count: torch.full((count, 8), 2.0)
    )
    keys = torch.tensor([[7, 9, 5], [7, 5, 5]])
    bag.eval()
    assert bag(keys).sum() == 0 and len(table) == 0
    bag.train()
    assert bag(keys).sum(1).tolist() == [32, 16] and len(table) == 2


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_wrong_offsets_of_bags_are_refused_with_the_place(table, padding_idx):
    bag = EmbeddingBag(table, mode="sum", padding_idx=padding_idx)
    keys = torch.tensor([3, 3, 4, 5])
    for offsets, words in [
        ([1, 2], "offset 0 is 1, but the first bag begins at key 0"),
        ([0, 3, 1], "offset 2 is 1, below the one before, 3"),
        ([0, 9], "offset 2 is 4, below the one before, 9"),
        ([0, -1], "offsets must be numbers from 0"),
    ]:
        with pytest.raises(forerun.errors.InvalidArgumentError, match=words):
            bag(keys, torch.tensor(offsets))


@pytest.mark.parametrize("pools", [True, False])
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_the_last_offset_is_the_end_of_the_last_bag(table, pools, mode):
    options = {"mode": mode, "include_last_offset": True}
    bag, keys = EmbeddingBag(table, **options), torch.arange(5)
    bag._can_pool &= pools
    one = bag(keys, torch.tensor([0, 2, 3]))
    # Not torch.nn's of these offsets, whose maximum has the keys that are in no bag.
    theirs = torch.nn.EmbeddingBag.from_pretrained(ROWS, **options)
    torch.testing.assert_close(one, theirs(keys[:3], torch.tensor([0, 2, 3])))
    one.backward(torch.ones(2, 8))
    touched, sums = bag.collected_gradients()
    # Of the first bag, only the greatest elements have a gradient in mode "max".
    assert touched.tolist() == [0, 1, 2] and sums.sum() == (24 if mode == "sum" else 16)
    for offsets, words in [
        ([0, 2, 9], "the last offset is 9, but there are 5 keys"),
        ([0, 3, 1], "offset 2 is 1, below the one before, 3"),
        ([1, 3, 5], "offset 0 is 1, but the first bag begins at key 0"),
        ([], "offsets must have the end of the last bag"),
    ]:
        with pytest.raises(forerun.errors.InvalidArgumentError, match=words):
            bag(keys, torch.tensor(offsets, dtype=torch.int64))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="offset 2 is 1, below"):
        plain = EmbeddingBag(table, mode=mode)
        plain._can_pool &= pools
        plain(keys, torch.tensor([0, 3, 1]))


def test_keys_and_offsets_of_32_bits_are_taken(table):
    keys = torch.arange(6, dtype=torch.int32)
    assert torch.equal(Embedding(table)(keys), ROWS[:6])
    offsets = torch.tensor([0, 2], dtype=torch.int32)
    for mode in ("sum", "max"):
        theirs = torch.nn.EmbeddingBag.from_pretrained(ROWS, mode=mode)
        bag = EmbeddingBag(table, mode=mode)
        torch.testing.assert_close(bag(keys, offsets), theirs(keys, offsets))
        torch.testing.assert_close(bag(keys.view(2, 3)), theirs(keys.view(2, 3)))


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


def test_missing_rows_are_created_only_while_training():
    table = forerun.Table(8)
    words = Embedding(table, initialize=lambda count: torch.full((count, 8), 2.0))
    words.eval()
    assert words(torch.tensor([7])).sum() == 0 and len(table) == 0
    words.train()
    assert words(torch.tensor([7, 9, 7])).sum() == 48 and len(table) == 2


def test_operators_pass_torchs_opcheck(table):
    words = Embedding(table)
    arguments = (torch.tensor([[1, 2], [3, 99]]), words.autograd_anchor, words._number, 8, 0)
    torch.library.opcheck(torch.ops.forerun.find.default, arguments)
    bag, keys = EmbeddingBag(table), torch.tensor([1, 2, 3, 99])
    for weights, padding_idx in [(None, None), (torch.ones(4), 3)]:
        arguments = (
            keys,
            torch.tensor([0, 1, 4]),
            weights,
            bag.autograd_anchor,
            bag._number,
            8,
            True,
            padding_idx,
            0,
        )
        torch.library.opcheck(torch.ops.forerun.find_pooled.default, arguments)
    torch.library.opcheck(torch.ops.forerun.bags.default, (keys, torch.tensor([0, 1, 4])))


@pytest.mark.parametrize("kind", [Embedding, EmbeddingBag])
def test_equal_lookups_in_compiled_code_keep_the_gradients_of_both(table, kind):
    words = kind(table)

    def twice(keys):
        return words(keys) + words(keys)

    keys = torch.tensor([[1, 2], [2, 3]])
    gradients = []
    for step in (twice, torch.compile(twice, backend="aot_eager", fullgraph=True)):
        step(keys).sum().backward()
        found_keys, found = words.collected_gradients()
        order = found_keys.argsort()
        gradients.append((found_keys[order], found[order]))
        words.clear_gradients()
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs)


def test_compiles_without_graph_breaks(table):
    bag = EmbeddingBag(table, mode="sum")
    keys = torch.randint(0, 100, (5, 7))
    compiled = torch.compile(bag, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(keys), bag(keys))
    compiled(keys).sum().backward()
    assert len(bag.collected_gradients()[0]) == len(torch.unique(keys))
    greatest = EmbeddingBag(table, mode="max", include_last_offset=True)
    compiled = torch.compile(greatest, backend="aot_eager", fullgraph=True)
    keys, offsets = keys.flatten(), torch.tensor([0, 5, 35])
    torch.testing.assert_close(compiled(keys, offsets), greatest(keys, offsets))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_types_work_as_well(dtype):
    table = forerun.Table(4, dtype)
    rows = torch.randn(10, 4).to(getattr(torch, dtype))
    words = Embedding(table, initialize=lambda count: rows[:count])
    assert torch.equal(words(torch.arange(10)), rows)


def test_mismatched_arguments_are_refused_with_a_message(table):
    with pytest.raises(forerun.errors.InvalidArgumentError, match="int64"):
        Embedding(table)(torch.tensor([1.0]))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="int32"):
        Embedding(forerun.Table(4, "int32"))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="mode"):
        EmbeddingBag(table, mode="median")
    with pytest.raises(forerun.errors.InvalidArgumentError, match="offsets"):
        EmbeddingBag(table)(torch.tensor([1]))


def test_a_lookup_writes_into_the_tensors_it_is_given(table):
    keys, out, found = (
        torch.tensor([[3, 200], [4, 5]]),
        torch.full((2, 2, 8), 7.0),
        torch.zeros(2, 2, dtype=torch.bool),
    )
    given, _ = table.find(keys, out=out, found=found)
    assert given is out and found.tolist() == [[True, False], [True, True]]
    assert (
        torch.equal(out[0, 0], ROWS[3])
        and torch.equal(out[1, 1], ROWS[5])
        and (out[0, 1] == 7).all()
    )
    assert np.array_equal(torch.from_dlpack(table.find(keys)[0])[1], ROWS[4:6])


def test_unusable_tensors_are_refused_with_the_reason(table):
    with pytest.raises(forerun.errors.InvalidArgumentError, match="grad"):
        table.insert([1], torch.zeros(1, 8, requires_grad=True))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="contiguous"):
        table.find([1] * 8, out=torch.zeros(8, 8).T)
    with pytest.raises(forerun.errors.InvalidArgumentError, match="float64"):
        table.insert([1], torch.zeros(1, 8, dtype=torch.float64))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="array of bfloat16"):
        table.find([1], out=torch.zeros(1, 8, dtype=torch.bfloat16))
    with pytest.raises(forerun.errors.InvalidArgumentError, match="meta"):
        Embedding(table)(torch.zeros(3, dtype=torch.int64, device="meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
def test_looked_up_rows_arrive_on_the_gpu_in_stream_order():
    table = forerun.Table(8, device_capacity=16)
    table.insert(torch.arange(100), ROWS)
    table.prefetch(np.arange(10))
    table.wait_idle()
    keys = torch.cat([torch.arange(99, -1, -7), torch.tensor([5000, 3, 3])])
    with torch.cuda.stream(torch.cuda.Stream()):
        # This is still running when the lookup begins, which overwrites it.
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
def test_lookups_go_on_while_another_thread_captures_a_graph():
    table = forerun.Table(8, device_capacity=16)
    table.insert(torch.arange(100), ROWS)
    table.prefetch(np.arange(10))
    table.wait_idle()
    number, graph, answers = torch.ones(1, device="cuda"), torch.cuda.CUDAGraph(), []

    def look_up():
        for length in (10, 1000, 100_000):  # memory for batches grows
            keys = np.arange(length) % 10
            rows, found = table.find(keys)
            answers.append(found.all() and np.array_equal(rows, ROWS.numpy()[keys]))

    # The default mode: a call that may be unsafe on any thread fails, and breaks the capture.
    with torch.cuda.graph(graph):
        number += 1
        thread = threading.Thread(target=look_up)
        thread.start()
        thread.join()
        number += 1
    graph.replay()
    assert number.item() == 3 and answers == [True] * 3
    assert table.gpu == 0  # a tier that has failed has none


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.parametrize("device_capacity", [0, 16])
def test_an_embedding_returns_rows_on_the_device_of_its_keys(device_capacity):
    table = forerun.Table(8, device_capacity=device_capacity)
    table.insert(torch.arange(100), ROWS)
    table.prefetch(np.arange(10))
    table.wait_idle()
    assert table.gpu == (0 if device_capacity else None)
    keys = torch.tensor([[3, 70, 5000], [3, 99, 0]], device="cuda")
    rows = Embedding(table)(keys)
    assert rows.is_cuda
    expected = torch.where((keys.cpu() < 100).unsqueeze(-1), ROWS[keys.cpu().clamp(max=99)], 0.0)
    assert torch.equal(rows.detach().cpu(), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
@pytest.mark.parametrize("pairs_on_gpu", [False, True])
def test_rows_are_copied_between_pinned_memory_and_a_gpu(pairs_on_gpu):
    host = torch.randn(100, 8).pin_memory()
    rows, places = torch.randperm(100)[:40], torch.randperm(60)[:40]
    pairs = torch.stack([rows, places], dim=1)
    back = torch.stack([places, rows], dim=1)
    if pairs_on_gpu:
        pairs, back = pairs.cuda(), back.cuda()
    with torch.cuda.stream(torch.cuda.Stream()):
        # This is still running when the copy begins, which overwrites a part of it.
        device = torch.full((60, 8), 9.0, device="cuda")
        forerun.gather(host, device, pairs)
        there = device.cpu()
        returned = torch.zeros(100, 8).pin_memory()
        forerun.scatter(device, returned, back)
        torch.cuda.current_stream().synchronize()
    expected = torch.full((60, 8), 9.0)
    expected[places] = host[rows]
    assert torch.equal(there, expected)
    assert torch.equal(returned[rows], host[rows]) and returned.count_nonzero() <= 320
