"""slipring.adapters.paddle: arguments that are refused, as Paddle refuses them."""

import inspect

import pytest

from slipring.adapters import paddle_own
from slipring.adapters.paddle import BatchSampler, DataLoader
from tests.support.adapters import Images, import_paddle


def test_feed_list_is_needed_for_dicts(monkeypatch):
    monkeypatch.setattr(paddle_own, "installed", lambda: None)
    with pytest.raises(AssertionError, match="feed_list"):
        DataLoader(Images(), return_list=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_workers": -1}, "num_workers.*-1"),
        ({"prefetch_factor": 0}, "prefetch_factor.*0"),
        ({"timeout": -1}, "timeout.*-1"),
        ({"batch_size": 0}, "batch_size.*0"),
        ({"places": []}, r"places.*\[\]"),
        ({"shuffle": True, "sampler": [1]}, "shuffle"),
        ({"batch_sampler": [[1]], "shuffle": True}, "batch_sampler"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler"),
        ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler"),
        ({"shuffle": "yes"}, "shuffle must .*'yes'"),
        ({"batch_sampler": 3}, "batch_sampler must .*(3|int)"),
        ({"feed_list": "image"}, "feed_list must .*'image'"),
        ({"dataset": 3}, "dataset must .*(3|int)"),
    ],
)
def test_bad_arguments_are_assertion_errors_as_paddles(kind, arguments, said):
    made = BatchSampler if "sampler" in arguments else DataLoader
    dataset = None if "sampler" in arguments else Images()
    with pytest.raises(AssertionError, match=said) as caught:
        made(**{"dataset": dataset, **arguments})
    assert isinstance(caught.value, TypeError if " must " in said else ValueError)


def test_the_signature_is_paddles():
    paddle = import_paddle()
    ours, theirs = (inspect.signature(loader).parameters for loader in (DataLoader, paddle.io.DataLoader))
    assert [*ours] == [*theirs]
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]


def test_without_paddle_the_only_place_is_the_cpu(monkeypatch):
    monkeypatch.setattr(paddle_own, "installed", lambda: None)
    with pytest.raises(AssertionError, match="gpu:0"):
        DataLoader(Images(), places="gpu:0")
