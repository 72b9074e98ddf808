"""The processes of a job find their pool with every launcher."""

import json
import multiprocessing
import os
import subprocess
import sys

import pytest

from slipring import Loader, Workers
from tests.pool.rank import Rows, parent_of
from tests.support.processes import ROOT


def pool_of(sender):
    with Loader(Rows(32), 4, num_workers=2, workers=Workers(pool="node")) as loader:
        pids = {int(batch[0, 2]) for batch in loader}
        sender.send({parent_of(pid) for pid in pids})
        sender.recv()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing_share_a_pool(method):
    context = multiprocessing.get_context(method)
    started = []
    for _ in range(3):
        mine, theirs = context.Pipe()
        process = context.Process(target=pool_of, args=(theirs,))
        process.start()
        started.append((process, mine))
    pools = [mine.recv() for _, mine in started]
    for process, mine in started:
        mine.send(None)
        process.join()
        assert process.exitcode == 0
    assert pools[0] == pools[1] == pools[2] and len(pools[0]) == 1


PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
from slipring import Workers
from slipring.torch import DataLoader
from tests.pool.rank import Rows, parent_of

if __name__ == "__main__":
    dist.init_process_group("gloo")
    data = Rows(64)
    sampler = torch.utils.data.DistributedSampler(data, seed=7)
    loader = DataLoader(data, 4, sampler=sampler, num_workers=2, workers=Workers(pool="node"))
    batches = [batch for batch in loader]
    rows = sorted(int(row[0]) for batch in batches for row in batch)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (rows, sorted({parent_of(int(batch[0, 2])) for batch in batches})))
    if dist.get_rank() == 0:
        print(json.dumps(gathered))
    dist.barrier()
    dist.destroy_process_group()
"""


def test_the_ranks_of_torchrun_share_a_pool(tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (first, pools), (second, others) = json.loads(done.stdout.splitlines()[-1])
    assert pools == others and len(pools) == 1
    assert sorted(first + second) == list(range(64)) and not set(first) & set(second)
