"""Bad lengths, options and states are refused with the document, the value and the rule."""

import re
import subprocess
import sys
import types

import numpy as np
import pytest

from slipring import tokens
from tests.tokens.planned import KINDS, lengths, ranks_of, saved

SIZES = lengths(300)


@pytest.mark.parametrize(
    ("sizes", "options", "text"),
    [
        ([5, 0, 3], {}, "document 1 has 0 tokens: each must have at least one: leave it out"),
        ([5, 3, -2], {}, "document 2 has -2 tokens"),
        ([0, 5, 3], {"cumulative": True}, "document 1 has -2 tokens"),
        ([5, 300, 3, 400], {}, "document 1 has 300 tokens, more than max_tokens=256"),
        ([5, 255], {"document_multiple_of": 10}, "document 1 has 255 tokens, more than max_tokens=256"),
        ([5], {"document_multiple_of": 300}, "max_tokens=256 must be at least document_multiple_of=300"),
        ([5.5], {}, "lengths must be integers (without nulls), not float64"),
        ([[5]], {}, "lengths must be one-dimensional"),
        (np.ma.masked_equal([5, 3], 3), {}, "lengths must have all values, not a masked array"),
        (7, {}, "lengths must be one-dimensional, with a number for each document, not 7"),
        ([], {"cumulative": True}, "there must be one more than documents"),
        ([5], {"overflow": "cut"}, "overflow must be one of 'error', 'drop', 'truncate', 'split', not 'cut'"),
        ([5], {"last": "pad"}, "last must be one of 'split', 'drop', 'repeat', not 'pad'"),
        ([5], {"cost": (1.0, float("nan"))}, "cost must be finite and not negative"),
        ([5], {"cost": (1.0,)}, "cost must be two numbers"),
        ([5], {"cost": [1.0, 2.0]}, "cost must have a number for each of 1 documents, not 2"),
        (
            [5],
            {"limits": {"images": 64}},
            "limits['images'] must be (the number of each document, the limit of a pack)",
        ),
        (
            [5],
            {"limits": {"images": ([1, 2], 64)}},
            "limits['images'] must have a number for each of 1 documents, not 2",
        ),
        ([5], {"limits": {"images": ([1], 4)}, "overflow": "split"}, "overflow='split' cannot be used with limits"),
        ([5], {"window": 0}, "window must be from 1 to"),
        ([5], {"batches_per_step": 0}, "batches_per_step must be from 1 to"),
        ([5], {"max_tokens": 0}, "max_tokens must be "),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_argument_is_named(kind, sizes, options, text):
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        kind(sizes, **{"max_tokens": 256, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cost": np.array([1.0, np.nan])}, "document 1 has cost nan: costs must be finite and not negative"),
        ({"limits": {"images": ([1, -1], 4)}}, "document 1 has -1 images: none must be negative"),
        ({"limits": {"images": ([1, 9], 4)}}, "document 1 has 9 images, more than the limit 4: give overflow='drop'"),
    ],
)
def test_a_bad_number_of_a_document_is_named_when_it_is_read(options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        next(iter(tokens.PackedSampler([5, 6], 256, **options)))


def test_padded_batches_need_a_limit():
    with pytest.raises(ValueError, match="give batch_size, max_tokens, or both"):
        tokens.TokenBatchSampler([5])


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"max_tokens": 300}, "max_tokens of the state is 256, of this sampler 300"),
        ({"last": "drop"}, "last of the state is 'split', of this sampler 'drop'"),
        ({"cost": (1.0, 0.5)}, "cost of the state is [1.0, 0.0], of this sampler [1.0, 0.5]"),
        ({"shuffle": False}, "order of the state is 'packs, shuffled', of this sampler 'packs, given'"),
        ({"lengths": SIZES[:-1]}, "lengths of the state is [300, "),
        ({"lengths": SIZES[::-1]}, "lengths of the state is [300, "),
    ],
)
def test_a_state_of_another_plan_names_what_differs(other, text):
    (sampler,) = ranks_of(tokens.PackedSampler, SIZES, 1)
    state = saved(iter(sampler).state_dict())
    (different,) = ranks_of(tokens.PackedSampler, other.pop("lengths", SIZES), 1, **other)
    with pytest.raises(ValueError, match=re.escape(text) + ".*Resume with the same lengths and options"):
        different.load_state_dict(state)


def test_a_state_of_no_plan_is_refused():
    (sampler,) = ranks_of(tokens.PackedSampler, SIZES, 1)
    batches = iter(sampler)
    next(batches)
    state = batches.state_dict()
    for wrong, text in [
        ([], "a state must be a dict"),
        ({}, "this is no state of slipring.tokens.PackedSampler"),
        ({**state, "windows": 3}, "windows must be a list of lists"),
        ({**state, "windows": []}, "the state has no window of position 1"),
        ({**state, "windows": [[0, 0]]}, "must be two ints and lists of three"),
        ({**state, "windows": [[0, -1, [1, 1, 0]]]}, "the start of a window in the state"),
        ({**state, "windows": [[0, 0, [0, 1, 0]]]}, "ranks of a window in the state"),
        ({**state, "position": -1}, "the state's position"),
        ({**state, "options": 3}, "the state's options must be a dict"),
    ]:
        with pytest.raises((TypeError, ValueError), match=re.escape(text)):
            sampler.load_state_dict(wrong)


LIBRARIES = {"accelerate.data_loader": "num_processes", "lightning.fabric.utilities.distributed": "num_replicas"}
DIVIDER = """
class Divider:
    def __init__(self):
        self.ranks = 2

    def read(self, batches):
        return next(iter(batches))
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_would_divide_packs_is_refused(library):
    module = types.ModuleType(library)
    exec(DIVIDER.replace("ranks", LIBRARIES[library]), vars(module))
    for options in ({"rank": 1, "world_size": 2}, {"seed": 0}, {}):
        with pytest.raises(ValueError, match=r"PackedSampler has rank=. and world_size=., and its batches would be"):
            module.Divider().read(tokens.PackedSampler(SIZES, 256, **options))


CHECKED = """
import sys
import numpy as np, torch.distributed as dist
from slipring import tokens
rank, store, wrong = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
options = {wrong: 1 + rank} if wrong else {}
sampler = tokens.PackedSampler(range(1, 50), 64, rank=rank, world_size=2, check_ranks=True, **options)
try:
    print(len(list(sampler)) == len(sampler))
except ValueError as error:
    print(error)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("wrong", "text"), [("", "True"), ("seed", "seed of rank 1 is 2, of rank 0 1: all ranks must have the same plan")]
)
def test_ranks_with_other_plans_are_told_before_the_first_batch(wrong, text, tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, "-c", CHECKED]
    ranks = [
        subprocess.Popen([*command, str(rank), tmp_path / "store", wrong], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [rank.communicate()[0].strip() for rank in ranks] == [text] * 2


def test_ranks_cannot_be_compared_without_torch_distributed():
    with pytest.raises(RuntimeError, match=r"torch\.distributed, which is not initialized"):
        next(iter(tokens.PackedSampler(SIZES, 256, world_size=2, check_ranks=True)))
