"""The private names of torch that slipring needs. A release of torch that changes one fails here first."""

import inspect
import json
import re
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils.data import DataLoader  # noqa: E402

from slipring.torch import private  # noqa: E402

PACKAGE = Path(private.__file__).resolve().parents[1]
# Modules below the layer of torch that may use one.
ELSEWHERE = {
    "_core/tensor_objects.py": ["torch._C", "torch._nested_view_from_buffer"],
    "_core/worker_info.py": ["torch.utils.data._utils"],
    "_observe/ranks.py": ["torch._C._distributed_c10d"],
}


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_every_iterator_of_torchs_is_one_of_the_base_class():
    assert isinstance(iter(DataLoader(range(2))), private.BaseIterator)


def test_the_base_class_takes_a_loader_and_has_the_attributes_of_an_epochs_start():
    assert parameters(private.BaseIterator.__init__) == ["self", "loader"]
    made = iter(DataLoader(range(4), 2))
    needed = (
        "_dataset",
        "_dataset_kind",
        "_index_sampler",
        "_sampler_iter",
        "_base_seed",
        "_num_yielded",
        "_pin_memory",
    )
    assert [name for name in needed if not hasattr(made, name)] == []
    assert callable(made._next_data) and callable(made._next_index) and callable(made._reset)


def test_the_kinds_of_datasets_are_two():
    assert private.DatasetKind.Map != private.DatasetKind.Iterable


def test_shared_seeds_and_shards_have_the_same_arguments():
    assert parameters(private.share_dist_seed) == ["generator", "pg"]
    assert parameters(private.sharding_worker_init_fn) == [*("worker_init_fn", "world_size", "rank_id", "worker_id")]


def test_a_worker_is_seeded_from_the_base_seed_and_its_number():
    assert parameters(private.generate_state) == ["base_seed", "worker_id"]
    assert all(0 <= word < 1 << 32 for word in private.generate_state(3, 1))


def test_worker_info_is_a_module_variable_of_a_class_that_takes_keywords():
    assert private.worker._worker_info is None
    made = private.worker.WorkerInfo(id=0, num_workers=2, seed=3, dataset=None)
    assert (made.id, made.num_workers, made.seed) == (0, 2, 3)


def test_collation_has_a_function_for_each_kind_of_value():
    named = ("tensor", "numpy_array", "numpy_scalar", "float", "int", "str")
    assert [kind for kind in named if not hasattr(private.collate, f"collate_{kind}_fn")] == []
    assert private.collate.default_collate_fn_map[torch.Tensor] is private.collate.collate_tensor_fn
    assert private.collate.default_collate is torch.utils.data.default_collate


def test_the_text_of_a_key_error_shows_its_lines():
    assert repr(private.KeyErrorMessage("two\nlines")) == "two\nlines"


def test_the_private_names_of_torch_for_the_codec_exist():
    assert callable(torch._C.DisableTorchFunctionSubclass) and callable(torch._nested_view_from_buffer)


def test_the_entries_of_collective_operations_are_recorded(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    before = time.time_ns()
    torch.distributed.all_reduce(torch.ones(1))
    entry = json.loads(sys.modules["torch._C._distributed_c10d"]._dump_fr_trace_json())["entries"][-1]
    torch.distributed.destroy_process_group()
    assert before <= entry["time_created_ns"] <= time.time_ns() and entry["is_p2p"] is False
    assert isinstance(entry["process_group"][0], str) and isinstance(entry["collective_seq_id"], int)


def test_pinning_takes_the_data_and_a_device():
    assert parameters(private.pin_memory.pin_memory) == ["data", "device"]


def test_a_profiler_that_runs_is_seen():
    assert not private.profiler_enabled()
    with torch.autograd.profiler.profile():
        assert private.profiler_enabled()


def test_no_other_module_touches_a_private_name_of_torch():
    touching = re.compile(
        r"torch\.utils\.data\._utils|torch\.utils\.data\.dataloader\b|\btorch\.(?:\w+\.)*_[A-Za-z]\w*"
    )
    found = {}
    for path in sorted(PACKAGE.rglob("*.py*")):
        if path.suffix in (".py", ".pyx") and path != Path(private.__file__):
            code = re.sub(r'"""[\s\S]*?"""|#[^\n]*', "", path.read_text())
            names = [name for name in touching.findall(code) if not name.startswith("torch.__")]
            if names:
                found[str(path.relative_to(PACKAGE))] = names
    assert found == ELSEWHERE
