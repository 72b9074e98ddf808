"""The workloads, by letter."""

from bench.workload import Workload
from bench.workloads import dicts, epochs, float32, images, new_arrays, photos, python, recipe, tiny, uint8

WORKLOADS: dict[str, Workload] = {
    workload.key: workload
    for workload in (
        *new_arrays.WORKLOADS,
        recipe.WORKLOAD,
        python.WORKLOAD,
        *(module.WORKLOAD for module in (photos, uint8, float32, tiny, dicts)),
        *images.WORKLOADS,
        epochs.WORKLOAD,
    )
}
