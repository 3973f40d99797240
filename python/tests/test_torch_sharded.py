"""`ShardedEmbeddingBag` in two processes of a gloo group, compared with `torch.nn`."""

import multiprocessing
import socket
import warnings

import forerun
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

ROWS, DIM, STEPS = 100, 8, 3


def batches(rank):
    """The bags of a process in each step; in the last step, process 1 has none."""
    generator = torch.Generator().manual_seed(rank)
    made = [torch.randint(0, ROWS, (5, 4), generator=generator) for _ in range(STEPS)]
    if rank == 1:
        made[-1] = made[-1][:0]
    return made


def initial():
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(9))


def process(rank, address, directory, results):
    from forerun.torch import SGD, ShardedEmbeddingBag
    from torch import distributed

    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    try:
        table = forerun.Table(DIM, path=f"{directory}/rows-{rank}")
        bag = ShardedEmbeddingBag(
            table, mode="sum", seed=4, initialize=lambda n: torch.ones(n, DIM)
        )
        # Its owners create each row as ones; the difference to the wanted rows is added.
        mine = torch.arange(rank, ROWS, 2)
        assert (bag(mine.unsqueeze(1)) == 1).all()
        bag.table.add_at(mine.numpy(), (initial()[mine] - 1).numpy())
        distributed.barrier()
        optimizer = SGD(bag, lr=0.1)
        answers = []
        for keys in batches(rank):
            answer = bag(keys)
            (answer * answer).sum().backward()
            optimizer.step()
            answers.append(answer.detach().numpy())
        path = bag.checkpoint(directory, "step-3")
        copy = ShardedEmbeddingBag(forerun.Table(DIM), name="copy", mode="sum", seed=5)
        copy.load(directory, "step-3")
        every = torch.arange(ROWS).unsqueeze(1)
        assert torch.equal(copy(every), bag(every))
        state = bag.state_dict()
        copy.load_state_dict(state)
        results.put((rank, answers, path, len(table)))
        distributed.barrier()
        table.close()
    finally:
        distributed.destroy_process_group()


def run(target, directory):
    """Runs a function in two processes, and returns what each puts in the queue."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    # The processes are forks of one that has imported PyTorch and has no threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "forerun.torch"])
    results = context.Queue()
    processes = [
        context.Process(target=target, args=(rank, address, str(directory), results))
        for rank in range(2)
    ]
    for each in processes:
        each.start()
    try:
        got = dict(
            (rank, rest) for rank, *rest in (results.get(timeout=300) for _ in range(2))
        )
    finally:
        for each in processes:
            each.join(60)
            if each.is_alive():
                each.kill()
    assert [each.exitcode for each in processes] == [0, 0]
    return got


def test_two_processes_train_as_one_module_of_torch_does(tmp_path):
    got = run(process, tmp_path)
    theirs = torch.nn.EmbeddingBag.from_pretrained(initial(), freeze=False, mode="sum")
    # Rows move by the mean of the gradients of two processes.
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1 / 2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(2):
            answer = theirs(batches(rank)[step])
            torch.testing.assert_close(torch.from_numpy(got[rank][0][step]), answer.detach())
            (answer * answer).sum().backward()
        optimizer.step()
    # The rows are spread, and the checkpoints have all of them.
    assert sum(rest[2] for rest in got.values()) == ROWS and min(r[2] for r in got.values()) > 20
    for rank in range(2):
        path = got[rank][1]
        assert path.endswith(f"step-3-{rank:04}-of-0002")
        with forerun.Table(DIM, path=path) as table:
            for keys, rows in table.export():
                torch.testing.assert_close(
                    torch.from_numpy(rows), theirs.weight.detach()[torch.from_numpy(keys).long()]
                )


def failing_process(rank, address, directory, results):
    """Process 1 fails in each collective call in turn. The time-out of the group is far longer than
    the test may take."""
    from forerun.torch import SGD, ShardedEmbeddingBag
    from torch import distributed

    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    try:
        raised = []

        def note(call):
            try:
                call()
                raised.append(("nothing", ""))
            except Exception as error:
                raised.append((type(error).__name__, str(error)))

        table = forerun.Table(DIM, path=f"{directory}/rows-{rank}")
        whole = forerun.Table(DIM, "int64") if rank == 1 else table
        note(lambda: ShardedEmbeddingBag(whole))
        note(lambda: ShardedEmbeddingBag(table, mode="sum" if rank == 0 else "product"))
        note(lambda: ShardedEmbeddingBag(table, seed=rank))
        bag = ShardedEmbeddingBag(table, mode="sum", initialize=lambda n: torch.ones(n, DIM))
        keys = torch.arange(ROWS).reshape(10, 10)
        note(lambda: bag(keys.to(torch.float32) if rank == 1 else keys))
        note(lambda: bag(keys, torch.arange(3) if rank == 1 else None))
        bag(keys).sum().backward()
        optimizer = SGD(bag, lr=1.0)
        note(lambda: bag.checkpoint(f"{directory}/nowhere/else" if rank == 1 else directory, "a"))
        optimizer.step()
        distributed.barrier()
        answer = bag(keys)
        results.put((rank, raised, answer.detach().numpy()))
        distributed.barrier()
        table.close()
    finally:
        distributed.destroy_process_group()


def test_a_process_that_fails_in_a_collective_call_is_an_error_in_all(tmp_path):
    (tmp_path / "nowhere").write_text("not a directory")
    got = run(failing_process, tmp_path)
    expected = [
        ("GroupError", "process 1 failed in construct: InvalidArgumentError: an embedding needs"),
        ("GroupError", "process 1 failed in construct: InvalidArgumentError: `mode` must be"),
        ("InvalidArgumentError", "process 1 has rows of another size or type, or another seed"),
        ("GroupError", "process 1 failed in find: InvalidArgumentError: keys are a tensor of"),
        ("GroupError", "process 1 failed in find: InvalidArgumentError: in a matrix of keys"),
        ("GroupError", "process 1 failed in checkpoint: "),
    ]
    for (name, words), (expected_name, start) in zip(got[0][0], expected, strict=True):
        assert name == expected_name and words.startswith(start), words
    assert "nothing" not in [name for name, _ in got[1][0]]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("a-")] == []
    # Each row was 1, and the mean of the processes' gradients, 1, was subtracted once.
    for rank in range(2):
        assert (got[rank][1] == 0).all()


def wrapped_process(rank, address, directory, results):
    """Training of a bag and a layer in `DistributedDataParallel`, made with each of its options."""
    from forerun.torch import SGD, EmbeddingBag, ShardedEmbeddingBag
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    keys = torch.arange(8).reshape(2, 2, 2)[rank]

    def train(bag, rows_of, options):
        model = torch.nn.Sequential(bag, torch.nn.Linear(4, 1))
        torch.nn.init.constant_(model[1].weight, 0.25)
        torch.nn.init.zeros_(model[1].bias)
        wrapped = DistributedDataParallel(model, **options)
        optimizers = [torch.optim.SGD(wrapped.parameters(), lr=0.1)]
        if not isinstance(bag, torch.nn.EmbeddingBag):
            optimizers.append(SGD(wrapped, lr=0.1))
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            wrapped(keys).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
        return rows_of(bag), model[1].weight.detach().numpy()

    try:
        theirs = torch.nn.EmbeddingBag.from_pretrained(
            torch.full((8, 4), 0.5), freeze=False, mode="sum"
        )
        got = [train(theirs, lambda bag: bag.weight.detach().numpy(), {})]
        for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
            bag = ShardedEmbeddingBag(
                forerun.Table(4),
                name="bag",
                mode="sum",
                initialize=lambda count: torch.full((count, 4), 0.5),
            )
            rows_of = lambda bag: bag(torch.arange(8).unsqueeze(1)).detach().numpy()
            got.append(train(bag, rows_of, options))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            SGD(EmbeddingBag(forerun.Table(4)), lr=0.1)
        results.put((rank, got, [str(each.message) for each in said]))
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def test_a_model_in_distributed_data_parallel_trains_as_with_torchs_module(tmp_path):
    got = run(wrapped_process, tmp_path)
    rows, weights = got[0][0][0]
    assert abs(rows - 0.5).min() > 0.001
    for rank in range(2):
        trained, said = got[rank]
        assert len(trained) == 4 and "use ShardedEmbeddingBag" in said[0]
        for more_rows, more_weights in trained:
            torch.testing.assert_close(torch.from_numpy(more_rows), torch.from_numpy(rows))
            torch.testing.assert_close(torch.from_numpy(more_weights), torch.from_numpy(weights))
