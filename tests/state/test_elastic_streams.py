"""slipring.torch's states of streams with other ranks: all ranks' states together give the unread samples."""

import itertools
import json
import multiprocessing
import os

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import flat  # noqa: E402
from tests.support.torch_datasets import as_lists  # noqa: E402


def resumed(loaders, states):
    for loader in loaders:
        loader.load_state_dict(states)
    return loaders


class Shards(IterableDataset):
    """Shards of numbers, divided among ranks and workers; the unread rest can be divided again."""

    def __init__(self, rank, ranks):
        self.rank, self.world_size = rank, ranks

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return Reading([[shard, 0] for shard in range(10)][self.rank :: self.world_size][worker::workers])

    def rest_of(self, states, num_workers):
        pieces = []
        for rank, workers in enumerate(states):
            for worker, state in enumerate(workers):
                begun = [[shard, 0] for shard in range(10)][rank :: len(states)][worker :: len(workers)]
                pieces += begun if state is None else state["iterator"]["pieces"]
        pieces = pieces[self.rank :: self.world_size]
        return [{"iterator": {"pieces": pieces[n::num_workers]}} for n in range(num_workers)]


class Reading:
    def __init__(self, pieces):
        self.pieces = pieces

    def __iter__(self):
        return self

    def __next__(self):
        while self.pieces and self.pieces[0][1] == 7:
            self.pieces = self.pieces[1:]
        if not self.pieces:
            raise StopIteration
        shard, at = self.pieces[0]
        self.pieces = [[shard, at + 1], *self.pieces[1:]]
        return 7 * shard + at

    def state_dict(self):
        return {"pieces": self.pieces}

    def load_state_dict(self, state):
        self.pieces = state["pieces"]


class Plain(IterableDataset):
    """Knows its rank, and cannot be divided again."""

    def __init__(self, rank, ranks):
        self.rank, self.world_size = rank, ranks

    def __iter__(self):
        return iter(range(self.rank, 70, self.world_size))


def streams(ranks, dataset=Shards, **options):
    return [DataLoader(dataset(rank, ranks), 3, **grouped(**options)) for rank in range(ranks)]


def read(loaders, taken):
    """Return the states of ranks that have read so many batches each, and the samples."""
    seen = []
    for loader, n in zip(loaders, taken, strict=True):
        iterator = iter(loader)
        seen += flat(as_lists(itertools.islice(iterator, n)))
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    for loader in loaders:
        loader.close()
    return states, seen


@pytest.mark.parametrize(
    ("taken", "before", "m", "behind"),
    [((4,), 0, 2, 0), ((3, 0, 6), 2, 2, 0), ((1, 9), 0, 4, 1), ((2, 2), 2, 2, 1)],
)
def test_the_unread_part_of_a_stream_is_read_once_by_other_ranks_and_workers(taken, before, m, behind):
    states, seen = read(streams(len(taken), num_workers=before), taken)
    new = resumed(streams(m, num_workers=behind), states[::-1])
    rest = [flat(as_lists(loader)) for loader in new]
    assert sorted(seen + flat(rest)) == list(range(70))
    later = [flat(as_lists(loader)) for loader in new]  # the next epoch is complete
    assert sorted(flat(later)) == list(range(70))
    for loader in new:
        loader.close()


def test_a_stream_can_be_divided_again_before_and_after_its_first_batch():
    states, seen = read(streams(2, num_workers=2), (3, 1))
    for ranks, taken in ((3, (0, 0, 0)), (4, (2, 0, 1, 0)), (1, (1,))):
        states, more = read(resumed(streams(ranks), states), taken)
        seen += more
    (last,) = resumed(streams(1, num_workers=2), states)
    assert sorted(seen + flat(as_lists(last))) == list(range(70))
    last.close()


def test_a_stream_that_all_ranks_have_read_begins_the_next_epoch():
    loaders = streams(2)
    assert len(flat(as_lists(loaders[0])) + flat(as_lists(loaders[1]))) == 70
    new = resumed(streams(3), [loader.state_dict() for loader in loaders])
    assert sorted(flat(flat(as_lists(loader)) for loader in new)) == list(range(70))


def test_a_stream_is_refused_by_name_where_it_cannot_be_divided():
    states, _ = read(streams(2), (1, 1))
    (other,) = streams(1)
    with pytest.raises(ValueError, match=r"rank 0 of 2, by Shards; here is rank 0 of 1.*a list of all ranks' st"):
        other.load_state_dict(states[0])
    (more,) = streams(1, num_workers=2)
    with pytest.raises(AssertionError, match=r"num_workers=0.*a list of all ranks' states"):
        more.load_state_dict({**states[0], "ranks": None})
    states, _ = read(streams(2, Plain), (1, 1))
    (plain,) = streams(1, Plain)
    with pytest.raises(ValueError, match=r"Plain has no rest_of\(states, num_workers\)"):
        plain.load_state_dict(states[0])
    with pytest.raises(TypeError, match=r"\(Plain\) has no rest_of\(states, num_workers\)"):
        plain.load_state_dict(states)


def test_a_stream_whose_states_are_of_earlier_batches_is_refused():
    states, _ = read(streams(2, num_workers=1, snapshot_every_n_steps=4), (3, 3))
    (other,) = streams(1)
    with pytest.raises(ValueError, match=r"rank 0 does not say where worker 0 was.*snapshot_every_n_steps=1"):
        other.load_state_dict(states)


class OfNobody(IterableDataset):
    """Does not know about ranks; torch.distributed does."""

    def __iter__(self):
        return iter(range(20))


def save_as_rank(number, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=number, world_size=2)
    loader = DataLoader(OfNobody(), 4)
    next(iter(loader))
    torch.save(loader.state_dict(), os.path.join(folder, f"{number}.pt"))
    torch.distributed.destroy_process_group()
    os._exit(0)  # its C++ threads would disturb the interpreter's own exit


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_ranks_of_torch_distributed_are_in_the_states_of_streams(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=save_as_rank, args=(number, str(tmp_path))) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    states = [torch.load(tmp_path / f"{number}.pt") for number in range(2)]
    assert [state["ranks"]["rank"] for state in states] == [0, 1]
    loader = DataLoader(OfNobody(), 4)
    with pytest.raises(ValueError, match="rank 0 of 2, by OfNobody; here is nothing that knows of ranks"):
        loader.load_state_dict(states[0])
