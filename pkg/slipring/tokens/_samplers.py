"""Batch samplers for documents of unequal length and cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from slipring._core.options.checks import integer
from slipring.tokens._planned import MOST, Planned

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slipring.tokens._mixed import MixedSampler


class PackedSampler(Planned):
    """Packs of whole documents, each of at most `max_tokens` tokens, for ``DataLoader(batch_sampler=...)``.

    Each batch is one pack, a list of documents' indices. An epoch has each document once, in a new order. The plan is a
    pure function of lengths, options, seed and epoch, so ranks need not communicate. All ranks have the same number of
    batches. Another number of ranks, of workers or of batches per step can finish an epoch: see `load_state_dict`.

    Packs are sorted by cost in windows of `window` packs. Neighbours form the batches of all ranks, and these are
    shuffled. So the ranks' costs are alike in each step, and steps differ from each other. `batches_per_step` takes the
    batches of an optimizer step from different parts of the costs.

    Parameters
    ----------
    lengths : array_like of int
        Tokens of each document, shape (n,). An array, memory-mapped too, is not copied; its values are read window by
        window. Up to 16 million lengths are checked at once, more when they are read.
    max_tokens : int
        A pack never has more tokens.
    cumulative : bool
        `lengths` are the n + 1 bounds of documents in a flat array, such as Arrow's offsets or ``cu_seqlens``.
    overflow : str
        What to do with a document above the budget: "error", "drop", "truncate", or "split" into several. The
        dataset gets the remaining part, or each of several, as an index of class `Piece`. `report` counts such
        documents.
    max_documents : int, optional
        A pack never has more documents.
    limits : dict, optional
        Further limits: name -> (numbers of each document, the limit of a pack), such as
        ``{"images": (images_of_document, 64)}``.
    document_multiple_of : int
        The length of each document is rounded up to a multiple of this number, for context parallelism or FP8. The
        collation pads it.
    cost : tuple or array_like
        (a, b): the cost of a pack is ``a * l + b * l ** 2``, summed over the lengths l of its documents. Or an array
        with the cost of each document.
    batches_per_step : int
        Batches of a rank that form an optimizer step. Every epoch has a multiple of it.
    last : str
        If packs do not fill the last step of all ranks: "split" divides its documents into more packs, "drop" leaves
        them out, and "repeat" takes other packs of the last window again. (Also "split" repeats packs, if those of the
        last two steps have too few documents.)
    window : int
        Packs that are sorted by cost at once.
    shuffle : bool
        A new plan in every epoch. If False, neighbouring documents stay near to each other.
    rank, world_size : int
        The rank, and the number of ranks. Under torchrun: ``RANK`` and ``WORLD_SIZE`` of the environment.
    seed : int, optional
        Must be the same in all ranks. None: 0 if there are several ranks, otherwise a new seed from the system.
    check_ranks : bool
        Compare lengths, options, seed and epoch of all ranks before the first batch, by torch.distributed.
    mixture : MixedSampler, optional
        Take the documents in the order of this mixture; `lengths` are those of its sources, one after the other. The
        epoch ends as the mixture does. Its `batch_size`, `rank`, `world_size` and `seed` have no effect. Weights that
        are changed at a resume hold after the documents that have been planned: at most about 262,144.

    Attributes
    ----------
    epoch : int
        The number of the next pass; may be set.
    batch_size : int
        Packs per batch, which is 1.

    Raises
    ------
    TypeError, ValueError
        An argument is wrong; the text names the argument or the document, its value and the rule. More than 16 million
        lengths are checked when they are read.

    Examples
    --------
    >>> from slipring import tokens
    >>> sampler = tokens.PackedSampler([5, 3, 4, 2, 2, 8], max_tokens=8, seed=0)
    >>> sorted(sorted(pack) for pack in sampler)
    [[0, 1], [2, 3, 4], [5]]
    >>> sampler.report().fill
    1.0
    """

    def __init__(
        self,
        lengths: ArrayLike,
        max_tokens: int,
        *,
        cumulative: bool = False,
        overflow: Literal["error", "drop", "truncate", "split"] = "error",
        max_documents: int | None = None,
        limits: Mapping[str, tuple[ArrayLike, int]] | None = None,
        document_multiple_of: int = 1,
        cost: tuple[float, float] | ArrayLike = (1.0, 0.0),
        batches_per_step: int = 1,
        last: Literal["split", "drop", "repeat"] = "split",
        window: int = 10_000,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
        check_ranks: bool = False,
        mixture: MixedSampler | None = None,
    ) -> None:
        integer("max_tokens", max_tokens, 1)
        super().__init__(
            lengths, max_tokens, max_documents, cumulative=cumulative, overflow=overflow, limits=limits,
            document_multiple_of=document_multiple_of, cost=cost, batches_per_step=batches_per_step, last=last,
            window=window, shuffle=shuffle, rank=rank, world_size=world_size, seed=seed, check_ranks=check_ranks,
            mixture=mixture,
        )  # fmt: skip


class TokenBatchSampler(Planned):
    """Padded batches of documents of similar length, for ``DataLoader(batch_sampler=...)``.

    Parts of about 262,144 documents are sorted by length and cut into batches. A batch is limited by its number of
    documents, by its tokens with padding, or by both. Otherwise it is as `PackedSampler`, which describes the ranks and
    the order of batches.

    Parameters
    ----------
    lengths : array_like of int
        As in `PackedSampler`.
    batch_size : int, optional
        A batch never has more documents.
    max_tokens : int, optional
        A batch never has more tokens, with its padding: its longest document times its number of documents.
    cumulative, overflow, limits, batches_per_step, last, window, shuffle
        As in `PackedSampler`.
    rank, world_size, seed, check_ranks, mixture
        As in `PackedSampler`.
    document_multiple_of : int
        The padded length of a batch is rounded up to a multiple of this number.
    cost : tuple or array_like
        As in `PackedSampler`; l is the padded length.

    Attributes
    ----------
    epoch : int
        The number of the next pass; may be set.
    max_documents : int or None
        The given `batch_size`. (The attribute of that name counts padded batches, and is 1.)

    Raises
    ------
    TypeError, ValueError
        As in `PackedSampler`.

    Examples
    --------
    >>> from slipring import tokens
    >>> sampler = tokens.TokenBatchSampler([5, 3, 4, 2, 2, 8], max_tokens=8, seed=0)
    >>> sorted(sorted(batch) for batch in sampler)
    [[0], [1, 3], [2], [4], [5]]
    """

    _PADDED = True

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        cumulative: bool = False,
        overflow: Literal["error", "drop", "truncate", "split"] = "error",
        limits: Mapping[str, tuple[ArrayLike, int]] | None = None,
        document_multiple_of: int = 1,
        cost: tuple[float, float] | ArrayLike = (1.0, 0.0),
        batches_per_step: int = 1,
        last: Literal["split", "drop", "repeat"] = "split",
        window: int = 10_000,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
        check_ranks: bool = False,
        mixture: MixedSampler | None = None,
    ) -> None:
        if integer("batch_size", batch_size, 1, MOST, optional=True) is None and max_tokens is None:
            raise ValueError("give batch_size, max_tokens, or both: they limit a batch")
        super().__init__(
            lengths, max_tokens, batch_size, cumulative=cumulative, overflow=overflow, limits=limits,
            document_multiple_of=document_multiple_of, cost=cost, batches_per_step=batches_per_step, last=last,
            window=window, shuffle=shuffle, rank=rank, world_size=world_size, seed=seed, check_ranks=check_ranks,
            mixture=mixture,
        )  # fmt: skip
