"""Slots lie on the node of the GPU that reads from them, and workers run there."""

import os

import pytest

torch = pytest.importorskip("torch")

from slipring import Workers  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.sockets import address, empty_tree, policy_of, two_sockets  # noqa: E402
from tests.support.torch_datasets import Made  # noqa: E402


def affinity(i):
    return torch.tensor([cpu in os.sched_getaffinity(0) for cpu in range(os.cpu_count())])


@pytest.fixture
def sockets(tmp_path, monkeypatch):
    empty_tree(tmp_path, monkeypatch)
    return two_sockets(tmp_path)


def processors_of(lab, batch):
    return set(torch.nonzero(lab.read(batch)[0])[:, 0].tolist())


def placement(loader):
    return policy_of(loader), loader.report().numa["node"]


def test_slots_and_workers_follow_the_gpu(lab, sockets):
    lab.pci_addresses = [address("43")]
    with DataLoader(Made(affinity, 4), 2, num_workers=1, device="privateuseone", persistent_workers=True) as loader:
        assert [processors_of(lab, batch) for batch in loader] == [sockets[0]] * 2
        assert placement(loader) in (("prefer:0", 0), ("default", None))  # a sandbox may refuse


def test_another_device_gets_other_slots_and_workers(lab, sockets):
    lab.pci_addresses = [address("1b"), None]
    with DataLoader(Made(affinity, 2), 2, num_workers=1, device="privateuseone:0", persistent_workers=True) as loader:
        (batch,) = loader
        assert processors_of(lab, batch) == sockets[0]
        loader.device = "privateuseone:1"
        (batch,) = loader
        assert processors_of(lab, batch) == sockets[0] | sockets[1]
        assert placement(loader) == ("default", None)


@pytest.mark.parametrize(("devices", "numa"), [(["1b", "9b"], "auto"), (["1b", "43"], None)])
def test_no_node_is_chosen_for_devices_on_two_nodes_or_if_none_is_wanted(lab, sockets, devices, numa):
    lab.pci_addresses = [address(device) for device in devices]
    devices = ["privateuseone:0", "privateuseone:1"]
    with DataLoader(Made(affinity, 2), 1, num_workers=1, device=devices, workers=Workers(numa=numa)) as loader:
        batches = iter(loader)
        assert [processors_of(lab, batch) for batch in next(batches)] == [sockets[0] | sockets[1]] * 2
        assert placement(loader) == ("default", None)
        del batches
