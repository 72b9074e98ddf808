"""torch.distributed: ranks that share a dataset, each with its own loader."""

import os

import pytest

from slipring import Workers

torch = pytest.importorskip("torch")

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

import slipring  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.clients.points import Line, Points  # noqa: E402

RANKS, EPOCHS, N = 2, 3, 24


def rank(number, folder):
    """Run one rank; raise an error if a check fails."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=number, world_size=RANKS)
    everyones = [None] * RANKS
    torch.distributed.all_gather_object(everyones, train(torch.nn.parallel.DistributedDataParallel(Line())))
    torch.save(everyones, os.path.join(folder, f"{number}.pt"))
    torch.distributed.destroy_process_group()
    # Not the interpreter's own end: under load it was seen to abort in torch's C++ threads ("terminate called
    # without an active exception"), when all loaders had been closed.
    os._exit(0)


def train(model):
    """Return the sample numbers that this rank gets in each epoch."""
    dataset = Points(N)
    sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True, seed=5)
    orders = []
    workers = {
        "num_workers": 2,
        "multiprocessing_context": "fork",  # spawned ranks would spawn their workers, which takes seconds
        "persistent_workers": True,
    }
    with DataLoader(dataset, 4, sampler=sampler, **workers) as loader:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            order = []
            for batch in loader:
                model(**batch)["loss"].backward()
                order += batch["i"].tolist()
            orders.append(order)
        assert loader.stats().batches == EPOCHS * N // RANKS // 4
    return orders


def test_two_ranks_together_see_every_index_once_per_epoch_in_another_order(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(rank, (str(tmp_path),), nprocs=RANKS)
    ranks, as_the_other_saw = (torch.load(tmp_path / f"{number}.pt") for number in range(RANKS))
    assert ranks == as_the_other_saw
    for epoch in range(EPOCHS):
        assert sorted(ranks[0][epoch] + ranks[1][epoch]) == list(range(N))
    for orders in ranks:
        assert len({tuple(order) for order in orders}) == EPOCHS


# ---- tensor parallel: two groups of two ranks; the ranks of a group load the same batches


class Drawn(torch.utils.data.Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return i, torch.rand(()).item(), slipring.rng().random()


TENSOR_PARALLEL = 2


def drawn(loader):
    with loader:
        batches = [[part.tolist() for part in batch] for batch in loader]
        return batches, sorted(each["rank"] for each in loader.report(ranks=True).ranks)


def loaders(group):
    """Return a loader of each kind; its sampler's rank is the number of the group."""
    groups = {"rank": group, "num_replicas": RANKS, "shuffle": False}
    options = {"sampler": torch.utils.data.DistributedSampler(range(N), **groups), "num_workers": 2}
    fork = {"multiprocessing_context": "fork"}
    yield slipring.Loader(Drawn(), 4, seed=5, workers=Workers(start_method="fork"), **options)
    for more in ({"rng": "batch"}, {"rng": "batch", "num_workers": 0}, {"num_workers": "auto"}):
        torch.manual_seed(5)
        with_workers = fork if more.get("num_workers") != 0 else {}
        yield DataLoader(Drawn(), 4, **{**options, **with_workers, **more})


def rank_of_a_group(number, folder):
    """Be one of four ranks: save the draws and the report of each loader for the test."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=number, world_size=RANKS * TENSOR_PARALLEL
    )
    found = [drawn(loader) for loader in loaders(number // TENSOR_PARALLEL)]
    torch.save(found, os.path.join(folder, f"{number}.pt"))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # as in `rank`


def test_ranks_of_a_tensor_parallel_group_draw_the_same_and_report_their_own_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(rank_of_a_group, (str(tmp_path),), nprocs=RANKS * TENSOR_PARALLEL)
    ranks = [torch.load(tmp_path / f"{number}.pt") for number in range(RANKS * TENSOR_PARALLEL)]
    for (first, reported), (second, _), (third, _), (fourth, _) in zip(*ranks, strict=True):
        assert first == second and third == fourth
        values = [value for batch in first + third for part in batch for value in part]
        assert len(set(values)) == len(values), "no sample and no random number comes twice"
        assert reported == [0, 1, 2, 3]
