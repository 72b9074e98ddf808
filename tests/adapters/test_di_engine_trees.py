"""slipring.adapters.di_engine: samples that are treetensor's trees of tensors."""

import functools
import warnings

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    trees = pytest.importorskip("treetensor.torch", reason="pip install DI-treetensor")

from slipring.adapters.di_engine import AsyncDataLoader, default_collate  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def tree(i):
    """Return each of DI-engine's cases: a leaf, a leaf of one element, a branch, a key that a dict would ignore."""
    return trees.Tensor(
        {
            "obs": torch.full((2,), float(i)),
            "reward": torch.tensor([float(i)]),
            "next": {"obs": torch.tensor(i), "done": torch.tensor([i])},
            "collate_ignore": torch.tensor([i, i]),
        }
    )


def check(batch, indices):
    """DI-engine converts them to dicts, and samples of shape (1,) to (B,)."""
    want = torch.tensor(indices)
    assert type(batch) is dict and set(batch) == {"obs", "reward", "next", "collate_ignore"}
    assert torch.equal(batch["obs"], want[:, None].expand(-1, 2).float())
    assert torch.equal(batch["reward"], want.float())
    assert type(batch["next"]) is dict and torch.equal(batch["next"]["obs"], want)
    assert torch.equal(batch["next"]["done"], want)
    assert torch.equal(batch["collate_ignore"], want[:, None].expand(-1, 2))


def test_trees_are_put_together_as_dicts():
    check(default_collate([tree(i) for i in range(4)]), [0, 1, 2, 3])
    check(default_collate([{"inner": tree(3)}, {"inner": tree(5)}])["inner"], [3, 5])
    assert torch.equal(default_collate(tree(2))["reward"], torch.tensor([2.0])), "a batch already"


@pytest.mark.parametrize(("num_workers", "ready"), [(0, True), (3, False)])
def test_samples_may_be_trees(num_workers, ready):
    def source(batch_size):
        made = [functools.partial(tree, i) for i in range(batch_size)]
        return [one() for one in made] if ready else made

    loader = AsyncDataLoader(source, 6, "cpu", num_workers=num_workers)
    for _ in range(3):
        check(next(loader), list(range(6)))
    loader.close()


def test_a_collate_fn_of_the_users_gets_trees_and_may_return_one():
    def source(batch_size):
        return [functools.partial(tree, i) for i in range(batch_size)]

    loader = AsyncDataLoader(source, 4, "cpu", collate_fn=trees.stack, num_workers=3)
    batch = next(loader)
    assert isinstance(batch, trees.Tensor)
    assert torch.equal(batch.next.done, torch.arange(4)[:, None])
    loader.close()
