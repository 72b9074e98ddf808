"""Tensors of a dataset with spawned workers: the file that all workers map contains each storage once."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402
from tests.support.parts import one_fast  # noqa: E402
from tests.support.processes import worker_pids  # noqa: E402
from tests.support.spawned import Parts, as_it_is, is_shared, mapping_of  # noqa: E402


class Two:
    """Two views of one storage, and a module that refers to it, too."""

    def __init__(self):
        whole = torch.arange(4000.0)
        self.first, self.second = whole[:3000].view(30, 100), whole[1000:]
        self.array = whole.numpy()
        self.parameter = torch.nn.Parameter(torch.ones(40, 50))
        self.tied = self.parameter


class OfOnesOwn(torch.Tensor):
    """A subclass of tensor."""


def changed(two):
    two.first[10, 0] = -1
    two.parameter.data[0, 0] = 5
    same = two.first.untyped_storage().data_ptr() == two.second.untyped_storage().data_ptr()
    return float(two.second[0]), float(two.array[1000]), same, float(two.tied[0, 0]), type(two.tied).__name__


def memory_of(tensor):
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout is torch.sparse_csr:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor] if tensor.numel() else []


def looked(value):
    """Return (values, class, requires_grad, whether each part of a tensor is in the file)."""
    if isinstance(value, Two):
        return changed(value)
    dense = value.dequantize() if value.is_quantized else value.to_dense()
    lies = [is_shared(mapping_of(each.data_ptr())) for each in memory_of(value)]
    return dense.detach().double().numpy().tobytes(), type(value).__name__, value.requires_grad, lies


def tensors():
    """Return {name: (tensor, whether its memory comes from the file)}."""
    eye = torch.eye(400)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that one is in beta, the other deprecated
        compressed = eye.to_sparse_csr()
        quantized = torch.quantize_per_tensor(torch.ones(3000), 0.5, 0, torch.qint8)
    return {
        "plain": (torch.arange(5000.0), True),
        "transposed": (torch.arange(5000.0).view(50, 100).t(), True),
        "of half precision": (torch.arange(2000).bfloat16(), True),
        "with a gradient": (torch.ones(3000, requires_grad=True), True),
        "parameter": (torch.nn.Parameter(torch.ones(3000)), True),
        "of a subclass": (torch.ones(3000).as_subclass(OfOnesOwn), True),
        "sparse": (eye.to_sparse(), True),
        "sparse, compressed": (compressed, True),
        "quantized": (quantized, True),
        "from numpy": (torch.from_numpy(np.arange(3000)), True),
        "small": (torch.arange(4), False),
        "empty": (torch.zeros(0, 3), False),
        "in shared memory": (torch.ones(3000).share_memory_(), False),
    }


def test_tensors_arrive_as_they_were_in_one_file_and_the_programs_own_are_not_moved():
    parts = {name: tensor for name, (tensor, _) in tensors().items()}
    two, many = Two(), {i: torch.full((300,), float(i)) for i in range(300)}
    everything = Parts({**parts, "two": two, **many}, looked)
    with DataLoader(everything, 1, num_workers=1, collate_fn=as_it_is, multiprocessing_context="spawn") as loader:
        batches = iter(loader)
        first = next(batches)
        (worker,) = worker_pids(batches).values()
        assert len(os.listdir(f"/proc/{worker}/fd")) < 60
        found = dict(zip(everything.parts, (batch["found"] for batch in [first, *batches]), strict=True))
    for name, (tensor, shared) in tensors().items():
        data, kind, gradient, lies = found[name]
        assert (data, kind, gradient) == looked(tensor)[:3], name
        assert lies == [shared] * len(lies) and (lies or name == "empty"), name
    assert [name for name, each in parts.items() if each.layout is torch.strided and each.is_shared()] == [
        "in shared memory"
    ]
    # Views of a storage share it in the worker, and parameters stay tied.
    assert found["two"] == (-1.0, -1.0, True, 5.0, "Parameter")
    assert float(two.second[0]) == 1000.0


WAYS = [("spawn", "file_descriptor"), ("forkserver", "file_descriptor"), ("spawn", "file_system")]


@pytest.mark.parametrize("way", one_fast(WAYS), ids=lambda way: ", ".join(way))
def test_a_tensor_in_shared_memory_stays_one_for_all_also_for_a_respawned_worker(way):
    method, strategy = way
    program = f"""
import os, signal, torch
from tests.support.spawned import Parts, as_it_is, write_seven
from tests.support.processes import worker_pids
from slipring import Loader, Workers
if __name__ == "__main__":
    torch.multiprocessing.set_sharing_strategy({strategy!r})
    parts = [torch.zeros(3000).share_memory_() for _ in range(40)]
    with Loader(Parts(dict(enumerate(parts)), write_seven), 1, num_workers=1,
                workers=Workers(start_method={method!r}, on_death="respawn"), collate_fn=as_it_is) as loader:
        batches = iter(loader)
        pids = {{next(batches)["found"]}}
        for pid in worker_pids(loader).values():
            os.kill(pid, signal.SIGKILL)
        pids |= {{batch["found"] for batch in batches}}
    assert len(pids) >= 2, pids
    print(sum(float(part[0]) for part in parts))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["280.0"]
