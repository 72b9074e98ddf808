"""All ranks that pack streams stop at the same step."""

import itertools
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from slipring import tokens
from tests.support.kinds import loading
from tests.tokens.packed import BUDGET, EVERY, Numbers, document, found_in, job, ranks_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(8))
def test_all_ranks_have_as_many_steps(seed):
    draw = random.Random(seed)
    steps, done, states, found = draw.randint(8, 40), 0, None, []
    while done < steps:
        n, most = draw.randint(1, 4), draw.choice([1, 5, 9, None])
        packs, states = job(ranks_of(n, steps_per_epoch=steps), draw.randint(0, 2), most, states, seed)
        left = steps - done if most is None else min(most, steps - done)
        assert len(packs) == n * left
        done += left
        found += packs
    assert len(found_in(found)) > 0


def test_a_worker_reads_again_what_does_not_suffice(caplog):
    with loading(tokens.pack(Numbers(20), BUDGET, steps_per_epoch=30), batch_size=None) as loader:
        found = found_in([*loader])
        assert len([*loader]) == 30  # in the next epoch, too
    once = [x for row in range(20) for x in document(0, row).tolist()]
    assert set(found) == set(once) and len(found) > 2 * len(once)
    assert "begins its documents again (round 2)" in caplog.records[0].getMessage()


def test_a_worker_without_documents_cannot_read_them_again():
    with (
        loading(tokens.pack(Numbers(0), BUDGET, steps_per_epoch=30), batch_size=None) as loader,
        pytest.raises(ValueError, match="worker 0 of 1 has no documents that can be packed, and steps_per_epoch=30"),
    ):
        next(iter(loader))


def test_a_worker_that_drops_all_documents_stops():
    class Long(Numbers):
        def documents(self):
            return [{"input_ids": [row] * 9} for row in range(self.n)]

    packs = tokens.pack(Long(), max_tokens=8, overflow="drop", steps_per_epoch=3)
    with (
        loading(packs, batch_size=None) as loader,
        pytest.raises(ValueError, match="no documents that can be packed, and steps_per_epoch=3 needs 3 packs"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_steps_continue_after_an_exception(workers):
    class Odd(Numbers):
        def documents(self):
            return [{"input_ids": [row] * (0 if row in (0, 9, 17) else 5)} for row in range(20)]

    with loading(tokens.pack(Odd(), 8), batch_size=None, num_workers=workers, start_method="thread") as loader:
        batches, found, errors = tokens.equal_steps(loader), 0, 0
        while True:
            try:
                next(batches)
                found += 1
            except StopIteration:
                break
            except ValueError:
                errors += 1
    assert (found, errors) == (17 * max(1, workers), 3 * max(1, workers))


class Ranks:
    """Ranks in threads of this process that compare numbers, and how often they did."""

    def __init__(self, n):
        self.barrier, self.numbers, self.calls = threading.Barrier(n), [None] * n, 0

    def least(self, rank):
        def compared(number):
            self.numbers[rank] = number
            self.barrier.wait()
            found = min(self.numbers)
            self.barrier.wait()
            self.calls += rank == 0
            return found

        return compared

    def run(self, loaders, most=None):
        """Return the batches of each rank."""
        found = [None] * len(loaders)

        def rank(number):
            batches = tokens.equal_steps(loaders[number], self.least(number))
            found[number] = [*itertools.islice(batches, most)]

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(loaders))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@pytest.mark.parametrize("options", [{}, {"split": True}, {"open_packs": 1}])
@pytest.mark.parametrize(("n", "workers", "every"), [(1, 0, 1), (2, 1, 1), (3, 2, 1), (4, 4, 1), (3, 2, 5)])
def test_ranks_stop_when_the_first_has_no_more(n, workers, every, options):
    loaders = [
        loading(packs, batch_size=None, num_workers=workers, start_method="thread", snapshot_every_n_steps=every)
        for packs in ranks_of(n, **options)
    ]
    ranks = Ranks(n)
    for _ in range(2):
        found = ranks.run(loaders)
        whole = [len([*loader]) for loader in loaders]
        assert {*map(len, found)} == {min(whole)}
    for loader in loaders:
        loader.close()


def test_ranks_compare_rarely_and_documents_that_remain_are_read_after_a_resume():
    ranks = Ranks(3)
    loaders = [loading(packs, batch_size=None) for packs in ranks_of(3)]
    found = ranks.run(loaders)
    steps = len(found[0])
    assert steps > 20 and ranks.calls < steps / 2
    states = [loader.state_dict() for loader in loaders]
    rest, _ = job(ranks_of(2), 1, states=states)
    assert sorted(found_in([*itertools.chain(*found), *rest])) == EVERY


def test_ranks_that_resume_stop_together():
    loaders = [loading(packs, batch_size=None, num_workers=1) for packs in ranks_of(2)]
    found = Ranks(2).run(loaders, 7)
    states = [loader.state_dict() for loader in loaders]
    resumed = [loading(packs, batch_size=None, num_workers=2) for packs in ranks_of(3)]
    for loader in resumed:
        loader.load_state_dict(states)
    rest = Ranks(3).run(resumed)
    assert len({*map(len, rest)}) == 1
    seen = found_in([*itertools.chain(*found, *rest)])
    assert len(seen) == len(set(seen))
    for loader in loaders + resumed:
        loader.close()


DISTRIBUTED = """
import sys
import torch.distributed as dist
from slipring import tokens
from slipring.torch import DataLoader
from tests.tokens.packed import ranks_of
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
collate = tokens.Flat(fields=["input_ids"])
loader = DataLoader(ranks_of(2)[rank], batch_size=None, num_workers=1, collate_fn=collate)
for _ in range(2):
    print(sum(1 for batch in tokens.equal_steps(loader)), len([*loader]))
dist.destroy_process_group()
"""


def test_ranks_of_torch_distributed_stop_together(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, "-c", DISTRIBUTED]
    ranks = [
        subprocess.Popen([*command, str(rank), tmp_path / "store"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for rank in range(2)
    ]
    (steps, own, *again), (others_steps, others, *_) = ([*map(int, rank.communicate()[0].split())] for rank in ranks)
    assert steps == others_steps == min(own, others)
    assert again == [steps, own]
