"""The private names of torch that slipring needs. A release of torch that changes one fails here first."""

import inspect
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils.data import DataLoader  # noqa: E402

from slipring.torch import private  # noqa: E402

PACKAGE = Path(private.__file__).resolve().parents[1]
# Modules below the layer of torch that may use one.
ELSEWHERE = {
    "_core/codec/tensor_objects.py": ["torch._C", "torch._nested_view_from_buffer"],
    "_core/ring/worker_info.py": ["torch.utils.data._utils"],
    "_observe/ranks.py": ["torch._C._distributed_c10d"],
}


PARAMETERS = [
    (private.BaseIterator.__init__, ["self", "loader"]),
    (private.share_dist_seed, ["generator", "pg"]),
    (private.sharding_worker_init_fn, ["worker_init_fn", "world_size", "rank_id", "worker_id"]),
    (private.generate_state, ["base_seed", "worker_id"]),
    (private.pin_memory.pin_memory, ["data", "device"]),
]
OF_AN_ITERATOR = [
    "_dataset", "_dataset_kind", "_index_sampler", "_sampler_iter", "_base_seed", "_num_yielded", "_pin_memory",
    "_next_data", "_next_index", "_reset",
]  # fmt: skip


@pytest.mark.parametrize(("function", "parameters"), PARAMETERS, ids=lambda value: getattr(value, "__qualname__", ""))
def test_a_function_has_the_parameters_that_slipring_passes(function, parameters):
    assert list(inspect.signature(function).parameters) == parameters


def test_torchs_iterators_are_of_the_base_class_and_have_the_attributes_of_an_epochs_start():
    made = iter(DataLoader(range(4), 2))
    assert isinstance(made, private.BaseIterator)
    assert [name for name in OF_AN_ITERATOR if not hasattr(made, name)] == []
    assert private.DatasetKind.Map != private.DatasetKind.Iterable


def test_single_names_do_what_slipring_needs():
    assert private.worker._worker_info is None
    assert private.collate.default_collate_fn_map[torch.Tensor] is private.collate.collate_tensor_fn
    assert repr(private.KeyErrorMessage("two\nlines")) == "two\nlines"
    assert callable(torch._C.DisableTorchFunctionSubclass) and callable(torch._nested_view_from_buffer)
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
