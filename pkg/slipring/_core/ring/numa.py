"""NUMA nodes: which one is next to a device, and how a worker stays on its processors."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from slipring._core.ring import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def nodes() -> list[int]:
    """Return the nodes that have memory; an empty list if the kernel does not say."""
    return sorted(_numbers("devices/system/node/has_memory"))


def chosen(numa: object, addresses: Callable[[], Iterable[str | None]]) -> int | None:
    """Return the node for slots and workers; None: the system places them.

    `numa` is `Workers.numa`. `addresses` returns the PCI address of each device that reads from the slots, or None if
    it has none; it is only called if memory can lie on several nodes.
    """
    if numa is None:
        return None
    known = nodes()
    if numa == "auto":
        near = {_node_of(address) for address in addresses()} if len(known) > 1 else set()
        return near.pop() if len(near) == 1 else None  # no node is near to devices on several nodes
    if numa not in known:
        here = f"only the NUMA nodes {known}" if known else "no NUMA nodes (/sys/devices/system/node)"
        raise ValueError(f"numa={numa}: this machine has {here}: give one of them, 'auto' or None")
    return int(numa)


def pin(node: int, number: int, always: bool) -> None:
    """Keep the calling worker on those of its processors that belong to a node.

    Unless `always`, worker `number` stays free if the node has too few processors for it, so that a single process on a
    large machine keeps all of them busy. The ranks of a machine count as evenly distributed over the nodes.
    """
    allowed = os.sched_getaffinity(0)  # by the launcher and the cpuset
    near = allowed & _numbers(f"devices/system/node/node{node}/cpulist")
    if not near or near == allowed or not (always or number < len(near) or process.cpus() <= len(near)):
        return
    try:
        os.sched_setaffinity(0, near)
    except OSError as error:  # a sandbox, or a cpuset that has just changed
        log.warning("worker %d is not bound to the processors of NUMA node %d: %s", number, node, error)


log = logging.getLogger("slipring")


def _node_of(address):
    """Return the node of a PCI device; None if it has none, or the kernel does not say."""
    text = "" if address is None else process.read(f"{process.ROOT}/sys/bus/pci/devices/{address}", "numa_node")
    return int(text) if text.isdigit() else None  # "-1": none


def _numbers(name):
    return process.listed(process.read(f"{process.ROOT}/sys", name))
