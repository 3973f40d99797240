"""`ShardedEmbeddingBag` in two processes of a gloo group, compared with `torch.nn`."""

import multiprocessing
import socket

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
        results.put((rank, answers, path, len(table)))
        distributed.barrier()
        table.close()
    finally:
        distributed.destroy_process_group()


def run(target, directory):
    """Runs a function in two processes, and returns what each puts in the queue."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=target, args=(rank, address, str(directory), results))
        for rank in range(2)
    ]
    for each in processes:
        each.start()
    try:
        got = dict(
            (rank, rest) for rank, *rest in (results.get(timeout=120) for _ in range(2))
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
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
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
        optimizer = SGD(bag, lr=0.5)
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
    # Each row was 1, and each process has taken 0.5 from it, once.
    for rank in range(2):
        assert (got[rank][1] == 0).all()
