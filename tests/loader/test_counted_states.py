"""The state of a sampler after so many batches, for a program that counts them."""

import pytest

from slipring import BatchSampler, Loader, Workers
from tests.loader.test_elastic import N, samplers


def test_who_counts_batches_has_the_state_behind_them():
    (sampler,) = samplers(1, 10, shuffle=True)
    batches = iter(sampler)
    given = [next(batches) for _ in range(5)]
    assert sampler.state_after(5) == batches.state_dict()
    other = BatchSampler(N, 5, shuffle=True)
    other.resume(sampler.state_after(3))
    passed = iter(other)
    assert [next(passed), next(passed)] == [given[3][:5], given[3][5:]]
    assert other.state_after(4)["position"] == 50
    with pytest.raises(ValueError, match=r"batches.*0.*-1"):
        sampler.state_after(-1)
    with pytest.raises(TypeError, match=r"batches.*None"):
        sampler.state_after(None)


def read_with_workers(kind, sampler, **options):
    """The iterator of a loader over `range(N)` with two workers."""
    if kind == "torch":
        pytest.importorskip("torch")
        from slipring.torch import DataLoader

        options["multiprocessing_context"] = "fork"
        return iter(DataLoader(range(N), batch_sampler=sampler, num_workers=2, **options))
    return iter(
        Loader(
            range(N), batch_sampler=sampler, num_workers=2, workers=Workers(start_method="fork"), **options
        )
    )


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", ["core", "torch"])
def test_a_count_of_batches_out_of_order_gives_no_state_but_at_both_ends_of_a_pass(kind, drop_last):
    (sampler,) = samplers(1, 4, shuffle=True, drop_last=drop_last)
    batches = read_with_workers(kind, sampler, in_order=False)
    n = len(sampler)
    for delivered in range(1, n):
        next(batches)
        with pytest.raises(ValueError, match=rf"batches={delivered} .*in_order=False.*state_dict\(\)"):
            sampler.state_after(delivered)
    assert sampler.state_after(0)["position"] == 0
    for _ in batches:
        pass
    assert sampler.state_after(n)["position"] == 4 * n
    next(iter(sampler))
    assert sampler.state_after(1)["position"] == 4, "nobody reads this pass out of order"
    next(read_with_workers(kind, sampler))
    assert sampler.state_after(1)["position"] == 4


class Damaged:
    def __len__(self):
        return N

    def __getitem__(self, i):
        if i % 50 == 7:
            raise OSError(i)
        return i


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_that_counts_batches_that_raise_reads_each_sample_once(workers):
    def reads(state, steps):
        (sampler,) = samplers(1, 4, shuffle=True)
        if state is not None:
            sampler.resume(state)
        seen, delivered = [], 0
        with Loader(
            Damaged(), batch_sampler=sampler, num_workers=workers, workers=Workers(start_method="fork")
        ) as loader:
            batches = iter(loader)
            while delivered != steps:
                try:
                    seen += next(batches).tolist()
                except StopIteration:
                    break
                except OSError:
                    pass
                delivered += 1
        return seen, sampler.state_after(delivered)

    whole, _ = reads(None, None)
    begun, state = reads(None, 30)
    assert len(whole) < N
    assert begun + reads(state, None)[0] == whole
