"""SLIPRING_FALLBACK=1: where slipring cannot run, a script runs unchanged, with torch's own loader."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs torch")

# The libraries are imported before the system changes its name: they would look for their own parts of it.
ELSEWHERE = """
import multiprocessing.pool, os, sys, warnings
import torch
multiprocessing.set_start_method("fork")
sys.platform = {system!r}
warnings.simplefilter("always")
"""
SCRIPT = """
import slipring
from slipring.torch import DataLoader, Device, install

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, i):
        return {"square": i * i, "pair": (torch.ones(2) * i, str(i))}

to = Device("cpu", transform=lambda batch: {**batch, "twice": batch["square"] * 2})
options = dict(workers=slipring.Workers(chunk_size=2), rng="batch", persistent_workers=True)
with install(), DataLoader(Squares(), 4, num_workers=(1, 2), device=to, **options) as loader:
    for epoch in range(2):
        for batch in loader:
            print(batch["twice"].tolist(), batch["pair"][0].shape, *batch["pair"][1])
"""
LINES = [
    "[0, 2, 8, 18] torch.Size([4, 2]) 0 1 2 3",
    "[32, 50, 72, 98] torch.Size([4, 2]) 4 5 6 7",
    "[128, 162] torch.Size([2, 2]) 8 9",
]


def run(script, system="darwin"):
    command = [sys.executable, "-c", ELSEWHERE.format(system=system) + script]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SLIPRING_FALLBACK": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), [line for line in done.stderr.splitlines() if "RuntimeWarning" in line]


@pytest.mark.parametrize("system", ["darwin", "linux"])
def test_a_script_runs_unchanged_and_only_elsewhere_with_one_warning(system):
    printed, warned = run(SCRIPT, system)
    assert printed == LINES * 2
    assert len(warned) == (1 if system == "darwin" else 0)
    assert all("torch's own loader" in line and "this is macOS" in line for line in warned)


CONTAINERS = """
import collections
import torch.distributed
from slipring.torch import DataLoader, context_slice

Pair = collections.namedtuple("Pair", "words numbers")

def made(samples):
    ids = torch.arange(8).reshape(1, 8)
    return Pair(collections.UserDict(ids=ids), collections.defaultdict(list, more=[ids, ("text",)]))

(batch,) = DataLoader([1], collate_fn=made, device="meta")
print(type(batch).__name__, batch.words["ids"].device, batch.numbers["more"][0].device, batch.numbers["more"][1])
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
print(context_slice(torch.arange(4).reshape(1, 4), torch.distributed.group.WORLD).tolist())
"""


def test_device_moves_batches_of_all_containers_and_context_slice_works():
    printed, _ = run(CONTAINERS)
    assert printed == ["Pair meta meta ('text',)", "[[[0, 1], [2, 3]]]"]


# What the script says -> how the error begins.
REFUSED = {
    "import slipring.images": "ImportError: slipring.images cannot be used here",
    "from slipring import images": "ImportError: slipring.images cannot be used here",
    "slipring.Loader(range(4))": "ImportError: slipring.Loader cannot be used here",
    "slipring.Loda": "AttributeError: module 'slipring' has no attribute 'Loda'",
    "DataLoader(range(4), shufle=True)": "TypeError: DataLoader() got an unexpected keyword argument 'shufle'",
    "DataLoader(range(4), rng='bath')": "ValueError: rng must be one of",
    "DataLoader(range(4), device=['cpu', 'cpu'])": "ValueError: device=['cpu', 'cpu']: torch's own loader takes",
    "DataLoader(range(4)).state_dict()": "AttributeError: torch's own loader, which replaces slipring's here",
}


def test_what_torchs_loader_cannot_do_is_an_error_that_says_so():
    script = f"""
import slipring
from slipring.torch import DataLoader
for line in {list(REFUSED)!r}:
    try:
        exec(line)
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
"""
    printed, _ = run(script)
    assert len(printed) == len(REFUSED)
    for said, wanted in zip(printed, REFUSED.values(), strict=True):
        assert said.startswith(wanted) and ("this is macOS" in said) == wanted.startswith("ImportError")
