"""How `forerun.torch` collects gradients and applies them, compared with `torch.nn`."""

import gc
import signal
import threading
import time
import warnings

import forerun
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from forerun._torch_gradients import bits  # noqa: E402
from forerun.torch import SGD, Embedding, EmbeddingBag  # noqa: E402

ROWS = torch.randn(100, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def table():
    table = forerun.Table(8)
    table.insert(torch.arange(100), ROWS)
    return table


def backward(words, keys, factor=1.0):
    (words(keys) * factor).sum().backward()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("by", ["optimizer", "module"])
def test_gradients_are_forgotten_by_zero_grad(table, set_to_none, by):
    words, keys = Embedding(table), torch.tensor([1, 2, 2])
    optimizer = SGD(words, lr=1.0)
    for factor in (5.0, 7.0):
        {"optimizer": optimizer, "module": words}[by].zero_grad(set_to_none=set_to_none)
        backward(words, keys, factor)
    touched, sums = words.collected_gradients()
    assert touched.tolist() == [1, 2] and sums[:, 0].tolist() == [7.0, 14.0]
    # Without zero_grad they accumulate, as those of parameters do.
    backward(words, torch.tensor([2, 3]))
    assert words.collected_gradients()[1][:, 0].tolist() == [7.0, 15.0, 1.0]
    words.zero_grad()
    backward(words, torch.tensor([9]))
    assert words.collected_gradients()[0].tolist() == [9]


def test_a_step_matches_torchs(table):
    torch.manual_seed(4)
    words, theirs = Embedding(table), torch.nn.Embedding.from_pretrained(ROWS.clone(), freeze=False)
    ours, plain = (
        SGD(torch.nn.Sequential(words), lr=0.5),
        torch.optim.SGD(theirs.parameters(), lr=0.5),
    )
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) for optimizer in (ours, plain)]
    for _ in range(4):
        keys, wanted = torch.randint(0, 100, (30,)), torch.randn(30, 8)
        for module, optimizer, schedule in zip((words, theirs), (ours, plain), schedules):
            optimizer.zero_grad()
            (module(keys) - wanted).square().sum().backward()
            rows = [module.rows] if module is words else []
            torch.nn.utils.clip_grad_norm_([*module.parameters(), *rows], 3.0)
            optimizer.step()
            schedule.step()
        after = torch.from_numpy(table.find(np.arange(100))[0])
        torch.testing.assert_close(after, theirs.weight.detach())


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


def test_clipping_sees_gradients(table):
    words, keys = Embedding(table), torch.tensor([1, 1, 2])
    theirs = torch.nn.Embedding.from_pretrained(ROWS, freeze=False)
    for module in (words, theirs):
        backward(module, keys)
    norms = [
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        for parameters in ([*words.parameters(), words.rows], theirs.parameters())
    ]
    torch.testing.assert_close(*norms)
    touched, sums = words.collected_gradients()
    torch.testing.assert_close(sums, theirs.weight.grad[touched])
    torch.nn.utils.clip_grad_value_(words.rows, 0.01)
    assert words.collected_gradients()[1].max() == pytest.approx(0.01)


def test_a_grad_scaler_unscales_gradients_and_leaves_out_steps_with_an_infinity(table):
    words, scaler = Embedding(table), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = SGD(words, lr=1.0)
    before = table[1].copy()
    for factor, change in ((1.0, 1.0), (float("inf"), 0.0), (2.0, 2.0)):
        optimizer.zero_grad()
        scaler.scale((words(torch.tensor([1])) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        after = table[1].copy()
        np.testing.assert_allclose(before - after, change, rtol=1e-5, atol=1e-6)
        before = after


@pytest.mark.parametrize(
    "make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]
)
def test_optimizers_of_dense_parameters_skip_rows(table, make):
    model = torch.nn.Sequential(Embedding(table), torch.nn.Linear(8, 1))
    dense, rows = make(model.parameters(), lr=0.1, weight_decay=0.1), SGD(model, lr=0.1)
    for length in (5, 9, 2):
        dense.zero_grad()
        keys = torch.arange(length)
        before = table.find(np.arange(100))[0]
        model(keys).sum().backward()
        sums = model[0].collected_gradients()[1]
        weight = model[1].weight.detach().clone()
        dense.step()
        assert not torch.equal(weight, model[1].weight)
        assert (table.find(np.arange(100))[0] == before).all(), (
            "only its own optimizer changes the table"
        )
        assert torch.equal(model[0].collected_gradients()[1], sums)
        rows.step()
        torch.testing.assert_close(
            torch.from_numpy(table.find(np.arange(length))[0]),
            torch.from_numpy(before[:length]) - 0.1 * sums,
        )


def test_a_graph_can_run_backward_after_a_step_of_an_optimizer(table):
    model = torch.nn.Sequential(Embedding(table))
    optimizer = torch.optim.SGD(
        list(model.parameters()) + [torch.nn.Parameter(torch.ones(1))], lr=0.1, weight_decay=0.5
    )
    first, second = model(torch.tensor([1])), model(torch.tensor([2]))
    first.sum().backward()
    for group in optimizer.param_groups:
        group["params"][-1].grad = torch.ones(1)
    optimizer.step()
    second.sum().backward()
    assert model[0].collected_gradients()[0].tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float64])
def test_a_module_that_is_converted_gives_rows_of_that_type_and_learns(dtype, to):
    table = forerun.Table(4, dtype)
    table.insert([1, 2], torch.ones(2, 4).to(getattr(torch, dtype)))
    words = torch.nn.Sequential(Embedding(table)).to(to)
    optimizer = SGD(words, lr=0.25)
    rows = words(torch.tensor([1, 1]))
    assert rows.dtype == to and (rows == 1).all()
    rows.sum().backward()
    assert words[0].rows.grad.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    optimizer.step()
    assert table[1].tolist() == [0.5] * 4 and table[2].tolist() == [1.0] * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_gradients_of_a_row_of_16_bits_are_summed_before_they_are_rounded(dtype):
    table = forerun.Table(2, str(dtype).removeprefix("torch."))
    table.insert([1], bits(torch.zeros(1, 2, dtype=dtype)))
    words = Embedding(table)
    for _ in range(4):
        backward(words, torch.ones(250, dtype=torch.int64))
    assert words.collected_gradients()[1].tolist() == [[1000.0, 1000.0]]
    words.apply_gradients(lr=1.0)
    assert words(torch.tensor(1)).tolist() == [-1000.0, -1000.0]
    table.insert([1], bits(torch.ones(1, 2, dtype=dtype)))
    # The same holds for rows that repeat in one call of the table.
    table.add_at([1] * 999, bits(torch.ones(999, 2, dtype=dtype)))
    assert words(torch.tensor(1)).tolist() == [1000.0, 1000.0]
    table.insert([1], bits(torch.ones(1, 2, dtype=dtype)))
    for mode, expected in (("sum", 1000.0), ("mean", 1.0)):
        bag = EmbeddingBag(table, mode=mode)
        assert bag(torch.ones((1, 1000), dtype=torch.int64)).tolist() == [[expected] * 2]


class Failing:
    """A table whose addition fails once: `error` ends it when `added` says which were added."""

    def __init__(self, table, error, added):
        self.table, self.error, self.added = table, error, added

    def __getattr__(self, name):
        return getattr(self.table, name)

    def _add_marked(self, keys, rows, marks):
        added = np.ones(len(keys), bool) if self.error is None else self.added(keys)
        mine = np.zeros(added.sum(), np.uint8)
        self.table._add_marked(keys[added], rows[added], mine)
        marks[added] = mine
        if self.error is not None:
            error, self.error = self.error, None
            raise error


def test_a_retry_after_a_partial_failure_adds_what_failed_and_nothing_twice(table):
    error = forerun.errors.PartialError("some failed", [2, 5])
    words = Embedding(Failing(table, error, lambda keys: ~np.isin(keys, [2, 5])))
    backward(words, torch.arange(8))
    with pytest.raises(forerun.errors.PartialError):
        words.apply_gradients(lr=1.0)
    assert words.collected_gradients()[0].tolist() == [2, 5]
    words.apply_gradients(lr=1.0)
    words.apply_gradients(lr=1.0)
    torch.testing.assert_close(torch.from_numpy(table.find(np.arange(8))[0]), ROWS[:8] - 1)


def test_threads_that_go_backward_at_once_lose_no_gradient(table):
    words, threads = Embedding(table), []
    for number in range(8):
        threads.append(
            threading.Thread(target=lambda: [backward(words, torch.arange(50)) for _ in range(20)])
        )
        threads[-1].start()
    for thread in threads:
        thread.join()
    touched, sums = words.collected_gradients()
    assert touched.tolist() == list(range(50)) and (sums == 160).all()


def test_threads_that_create_the_same_key_get_one_row():
    table, barrier = forerun.Table(4), threading.Barrier(4)
    made = iter(range(1, 10**6))

    def initialize(count):
        return torch.full((count, 4), float(next(made)))

    words, seen = Embedding(table, initialize=initialize), [[] for _ in range(4)]

    def meet(mine):
        for key in range(100):
            barrier.wait()
            mine.append(words(torch.tensor([key]))[0, 0].item())

    threads = [threading.Thread(target=meet, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[0] == seen[1] == seen[2] == seen[3] == table.find(np.arange(100))[0][:, 0].tolist()


def test_a_single_key_has_a_row_and_a_gradient(table):
    words = Embedding(table)
    row = words(torch.tensor(7))
    assert torch.equal(row, ROWS[7])
    row.sum().backward()
    touched, sums = words.collected_gradients()
    assert touched.tolist() == [7] and sums.tolist() == [[1.0] * 8]


def test_backward_works_after_the_module_is_dropped(table):
    words, weight = Embedding(table), torch.ones(8, requires_grad=True)
    optimizer = SGD(words, lr=1.0)
    loss = (words(torch.tensor([1])) * weight).sum()
    del words
    gc.collect()
    loss.backward()
    assert torch.equal(weight.grad, ROWS[1])
    optimizer.step()
    torch.testing.assert_close(
        torch.from_numpy(table[1]), ROWS[1] - 1, msg="its optimizer has its gradients"
    )


def test_a_module_that_is_frozen_collects_nothing(table):
    words = Embedding(table).requires_grad_(False)
    assert not words(torch.tensor([1])).requires_grad


def test_a_step_that_is_interrupted_and_made_again_moves_no_row_twice(table):
    # Also if the signal comes when all has been added.
    for end in (0, 3, 8):
        words = Embedding(Failing(table, KeyboardInterrupt(), lambda keys: keys < end))
        before, optimizer = table.find(np.arange(8))[0], SGD(words, lr=1.0)
        backward(words, torch.arange(8))
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        assert words.collected_gradients()[0].tolist() == list(range(end, 8))
        optimizer.step()
        np.testing.assert_allclose(table.find(np.arange(8))[0], before - 1, rtol=1e-5, atol=1e-6)


def test_a_signal_ends_an_addition_between_keys_that_are_marked():
    count = 100_000
    table = forerun.Table(4, "int64")
    table.insert(np.arange(count), np.zeros((count, 4), np.int64))
    keys, rows = np.arange(count + 1).repeat(4), np.ones((4 * count + 4, 4), np.int64)
    marks = np.zeros(len(keys), np.uint8)

    class Rang(Exception):
        pass

    def ring(*_):
        raise Rang

    former = signal.signal(signal.SIGALRM, ring)
    try:
        # The engine looks for signals every 50 ms. Whether it has ended by then or not, the marks
        # are right.
        signal.setitimer(signal.ITIMER_REAL, 0.06)
        try:
            table._add_marked(keys, rows, marks)
            time.sleep(0.1)
        except Rang:
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    added = np.bincount(keys[marks == 1], minlength=count)
    assert (table.find(np.arange(count))[0][:, 0] == added[:count]).all()
    left = marks == 0
    rest = np.zeros(left.sum(), np.uint8)
    table._add_marked(keys[left], rows[left], rest)
    assert (table.find(np.arange(count))[0] == 4).all()
    marks[left] = rest
    assert marks.tolist() == [1] * (4 * count) + [2] * 4


def test_a_step_of_the_dense_optimizer_that_fails_loses_no_gradient_of_rows(table):
    class Flaky(torch.optim.SGD):
        fails = True

        def step(self, closure=None):
            if self.fails:
                raise RuntimeError("out of memory")
            return super().step(closure)

    model = torch.nn.Sequential(Embedding(table), torch.nn.Linear(8, 1))
    dense, rows = Flaky(model.parameters(), lr=0.1), SGD(model, lr=0.1)
    model(torch.tensor([1, 2])).sum().backward()
    sums = model[0].collected_gradients()[1]
    with pytest.raises(RuntimeError, match="out of memory"):
        dense.step()
    dense.fails = False
    dense.step()
    rows.step()
    torch.testing.assert_close(torch.from_numpy(table.find([1, 2])[0]), ROWS[[1, 2]] - 0.1 * sums)


def test_a_grad_scaler_with_an_optimizer_of_all_parameters_moves_rows_as_without_one():
    def trained(scaled):
        torch.manual_seed(0)
        table = forerun.Table(4)
        table.insert(np.arange(10), np.ones((10, 4), np.float32))
        model = torch.nn.Sequential(EmbeddingBag(table, mode="sum"), torch.nn.Linear(4, 1))
        dense, rows = torch.optim.Adam(model.parameters(), lr=1e-3), SGD(model, lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        for _ in range(3):
            dense.zero_grad()
            rows.zero_grad()
            loss = model(torch.tensor([[1, 2], [3, 4]])).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(dense)
            scaler.unscale_(rows)
            torch.nn.utils.clip_grad_norm_([*model.parameters(), model[0].rows], 1.0)
            scaler.step(dense)
            scaler.step(rows)
            scaler.update()
        return table[1]

    np.testing.assert_allclose(trained(True), trained(False), rtol=1e-5)
    assert np.abs(trained(True) - 1).max() > 0.01


@pytest.mark.parametrize("by", ["model", "optimizer"])
def test_gradients_of_rows_are_cleared_with_those_of_the_model(table, by):
    model = torch.nn.Sequential(Embedding(table), torch.nn.Linear(8, 1))
    dense = torch.optim.Adam(model.parameters())
    model(torch.tensor([1, 2])).sum().backward()
    # Two lookups of one graph, and two graphs, accumulate.
    (model(torch.tensor([2])) + model(torch.tensor([3]))).sum().backward()
    assert model[0].collected_gradients()[0].tolist() == [1, 2, 3]
    {"model": model, "optimizer": dense}[by].zero_grad()
    assert len(model[0].collected_gradients()[0]) == 0
    (model(torch.tensor([4])) + model(torch.tensor([5]))).sum().backward()
    assert model[0].collected_gradients()[0].tolist() == [4, 5]


def test_a_model_that_is_frozen_collects_nothing(table):
    model = torch.nn.Sequential(Embedding(table), torch.nn.Linear(8, 1)).requires_grad_(False)
    assert not model(torch.tensor([1])).requires_grad
    model.requires_grad_()
    model(torch.tensor([1])).sum().backward()
    assert model[0].collected_gradients()[0].tolist() == [1]


def test_an_optimizer_that_is_missing_is_noticed(table):
    def train(model, optimizers):
        for _ in range(20):
            for optimizer in optimizers:
                optimizer.zero_grad()
            model(torch.tensor([1, 2])).sum().backward()
            for optimizer in optimizers:
                optimizer.step()

    def made():
        model = torch.nn.Sequential(Embedding(table), torch.nn.Linear(8, 1))
        return model, [torch.optim.Adam(model.parameters())]

    with pytest.warns(UserWarning, match="were cleared 16 times and never applied"):
        train(*made())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, optimizers = made()
        train(model, [*optimizers, SGD(model, lr=0.1)])


def test_gradients_of_keys_without_a_row_are_counted_and_reported_once(table):
    words, bag = Embedding(table), EmbeddingBag(table, mode="sum", padding_idx=300)
    bag._can_pool = False
    optimizer = SGD([words, bag], lr=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Padding has no row and no gradient.
        backward(bag, torch.tensor([[1, 300]]))
        optimizer.step()
    backward(words, torch.tensor([1, 200, 201]))
    with pytest.warns(UserWarning, match="the gradients of 2 keys were lost"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backward(words, torch.tensor([200]))
        optimizer.step()
    assert words.lost_gradients == 3 and bag.lost_gradients == 0
    torch.testing.assert_close(torch.from_numpy(table[1]), ROWS[1] - 2)


def test_initialize_may_use_another_embedding_that_creates_rows():
    category = Embedding(forerun.Table(4), initialize=lambda n: torch.full((n, 4), 0.5))
    item = Embedding(
        forerun.Table(4), initialize=lambda n: category(torch.arange(n)).detach() + 1
    )
    made = []
    # A daemon, because a deadlock would never end.
    thread = threading.Thread(target=lambda: made.append(item(torch.tensor([7, 9]))), daemon=True)
    thread.start()
    thread.join(30)
    assert made and made[0].detach().tolist() == [[1.5] * 4] * 2


def test_parameters_in_place_of_modules_are_refused_with_the_way_out(table):
    with pytest.raises(forerun.errors.InvalidArgumentError, match="give SGD the modules"):
        SGD(Embedding(table).parameters(), lr=0.1)
