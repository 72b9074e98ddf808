"""Parts of sequences for context-parallel ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import torch

from slipring._core.codec.pytree import map_leaves
from slipring._core.options.checks import integer
from slipring.errors import shown

if TYPE_CHECKING:
    import torch.distributed.device_mesh

_Batch = TypeVar("_Batch")

# Where documents begin, in the formats of `slipring.tokens`. The first of them that a batch has counts.
BOUNDS = ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seq_lens_q", "cu_seqlens")
PACKED = "packed_seq_params"
OF_DOCUMENTS = ("cu_seqlens", "cu_seq_lens_", "max_seqlen", "max_length_", PACKED)  # beginnings of names


def context_slice(
    batch: _Batch,
    mesh: torch.distributed.device_mesh.DeviceMesh | torch.distributed.ProcessGroup,
    *,
    dim: int = 1,
    order: Literal["zigzag", "contiguous"] = "zigzag",
) -> _Batch:
    """Return a context-parallel rank's part of each sequence in a batch, as views wherever a view suffices.

    With n ranks, a part is an n-th of the sequence. With "zigzag", a sequence is divided into 2 n chunks, and rank i
    gets the chunks i and 2 n - 1 - i: then causal attention takes equally long in all ranks.

    Parameters
    ----------
    batch : tensor, or dict, list or tuple of tensors
        All tensors that have the dimension `dim` must have the same length there. Other values stay as they are.
    mesh : torch.distributed.DeviceMesh or torch.distributed.ProcessGroup
        The context-parallel ranks, such as ``mesh["cp"]``: one dimension.
    dim : int
        The dimension of sequences: 1 for [batch, tokens], 0 for [tokens].
    order : {'zigzag', 'contiguous'}
        'contiguous'
            Each tensor becomes a view of its i-th part, [..., length / n, ...].
        'zigzag'
            Each tensor becomes one view of both chunks, [..., 2, length / (2 n), ...]. After the copy to a device,
            ``.flatten(dim, dim + 1)`` joins the chunks, [..., length / n, ...], as Megatron, TransformerEngine and
            torch's ``context_parallel`` arrange them.
        'zigzag' of a packed batch
            If the batch is a dict with `cu_seqlens_q`, `cu_seq_lens_q`, `cu_seqlens` or `packed_seq_params`, as those
            of `slipring.tokens.Flat`, each document is divided for itself. Tensors are copies of the rank's tokens,
            [..., length / n, ...], because chunks of several documents are no view. The cumulative and longest lengths
            stay those of whole documents, as TransformerEngine wants them.

    Returns
    -------
    tensor, dict, list or tuple
        As `batch`. Views keep its memory, so a batch in a slot stays there.

    Raises
    ------
    TypeError, ValueError
        Lengths differ, or a sequence or document cannot be divided into n (or 2 n) equal chunks; the mesh has several
        dimensions, or this rank is not in it.

    Examples
    --------
    >>> import torch
    >>> from slipring.torch import context_slice
    >>> mesh = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))  # doctest: +SKIP
    >>> context_slice(torch.arange(8)[None], mesh["cp"]).flatten(1, 2)  # in rank 1  # doctest: +SKIP
    tensor([[2, 3, 4, 5]])
    """
    if order not in ("zigzag", "contiguous"):
        raise ValueError(f"order must be 'zigzag' or 'contiguous', not {shown(order)}")
    dim = integer("dim", dim, 0)
    rank, ranks = _rank_in(mesh)
    length = _length(batch, dim)
    bounds = _bounds(batch) if order == "zigzag" else None
    if bounds is not None:
        if bounds[-1] > length:
            raise ValueError(
                f"the cumulative lengths count {bounds[-1]} tokens, and dim={dim} has {length}: documents are divided "
                "in batches of one row only"
            )
        index = _tokens(bounds, length, rank, ranks)
        return _mapped(batch, dim, lambda tensor: tensor.index_select(dim, index.to(tensor.device)))
    chunks = 2 * ranks if order == "zigzag" else ranks
    if length % chunks:
        raise ValueError(
            f"a sequence of {length} tokens (dim={dim}) cannot be divided into {chunks} equal chunks: pad it to a "
            f"multiple of {chunks}, such as with pad_to_multiple_of="
        )
    if order == "contiguous":
        return _mapped(batch, dim, lambda tensor: tensor.narrow(dim, rank * (length // ranks), length // ranks))
    return _mapped(batch, dim, lambda tensor: _zigzag(tensor, dim, rank, ranks))


def _zigzag(tensor, dim, rank, ranks):
    """Return a view of the two chunks of a rank, which have a step of their own."""
    parts = tensor.unflatten(dim, (2 * ranks, tensor.shape[dim] // (2 * ranks)))
    return parts[(slice(None),) * dim + (slice(rank, 2 * ranks - rank, 2 * ranks - 1 - 2 * rank),)]


def _rank_in(mesh):
    """Return (rank, number of ranks) of this process."""
    if isinstance(mesh, torch.distributed.device_mesh.DeviceMesh):
        if mesh.ndim != 1:
            raise ValueError(f"context_slice() needs a mesh of one dimension, such as mesh['cp'], not {shown(mesh)}")
        if mesh.get_coordinate() is None:
            raise ValueError(f"rank {torch.distributed.get_rank()} is not in the mesh {shown(mesh)}")
        return mesh.get_local_rank(), mesh.size()
    if not isinstance(mesh, torch.distributed.ProcessGroup):
        raise TypeError(f"mesh must be a DeviceMesh or a ProcessGroup, not {shown(mesh)}")
    return torch.distributed.get_rank(mesh), torch.distributed.get_world_size(mesh)


# ---- the tensors of a batch


def _is_of_documents(name):
    return isinstance(name, str) and name.startswith(OF_DOCUMENTS)


def _mapped(batch, dim, function):
    """Return the batch with the function of each tensor that has the dimension and is of tokens."""

    def cut(leaf):
        return function(leaf) if torch.is_tensor(leaf) and leaf.dim() > dim else leaf

    if not isinstance(batch, Mapping):
        return map_leaves(batch, cut)
    return {name: value if _is_of_documents(name) else map_leaves(value, cut) for name, value in batch.items()}


def _length(batch, dim):
    """Return the length of all tensors along a dimension."""
    found = []
    _mapped(batch, dim, lambda tensor: found.append(tensor.shape[dim]))
    if not found:
        raise ValueError(f"the batch has no tensor with a dimension {dim}: give the dimension of sequences as dim=")
    if len(set(found)) > 1:
        raise ValueError(
            f"the batch has tensors of {min(found)} and of {max(found)} along dim={dim}: give only the entries whose "
            "sequences are divided"
        )
    return found[0]


# ---- packed documents


def _bounds(batch):
    """Return where documents begin and the last one ends, as an array; None: the batch is not packed."""
    for entries in (batch, batch.get(PACKED)) if isinstance(batch, Mapping) else ():
        for name in BOUNDS if isinstance(entries, Mapping) else ():
            if entries.get(name) is not None:
                bounds = np.asarray(torch.as_tensor(entries[name]).cpu(), np.int64).ravel()
                _check_bounds(name, bounds)
                return bounds
    return None


def _check_bounds(name, bounds):
    if not bounds.size or bounds[0] or (np.diff(bounds) < 0).any():
        raise ValueError(
            f"{name}={shown(bounds.tolist())}: cumulative lengths must begin with 0 and never decrease; to pad them, "
            "repeat the last one"
        )


def _tokens(bounds, length, rank, ranks):
    """Return the indices of a rank's tokens of all documents, in order."""
    bounds = np.append(bounds, length)  # rows after the last document are divided like one
    lengths, chunks = np.diff(bounds), 2 * ranks
    if (bad := np.flatnonzero(lengths % chunks)).size:
        raise ValueError(
            f"document {bad[0]} of the batch has {lengths[bad[0]]} tokens, which cannot be divided into {chunks} equal "
            f"chunks: pad documents to a multiple of {chunks}, such as with document_multiple_of={chunks}"
        )
    size = lengths // chunks
    starts = np.stack([bounds[:-1] + rank * size, bounds[:-1] + (chunks - 1 - rank) * size], 1).ravel()
    sizes = np.repeat(size, 2)
    # The position of each token within its chunk, added to the chunk's start.
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return torch.from_numpy(np.repeat(starts, sizes) + within)
