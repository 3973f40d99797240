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


def test_two_processes_train_as_one_module_of_torch_does(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=process, args=(rank, address, str(tmp_path), results))
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
