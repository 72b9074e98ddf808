"""The private names of torch that slipring uses, each defined once.

If a release of torch changes one of them, `tests/torch/test_private_names.py` fails first, and says what slipring
needs of it. (Three modules below this layer use more: `codec/tensor_objects` has
``torch._C.DisableTorchFunctionSubclass`` and ``torch._nested_view_from_buffer``, `ring/worker_info` sets the worker
info in `worker`, and `_observe/ranks` reads the flight recorder in ``torch._C._distributed_c10d``.)
"""

import torch
from torch._utils import KeyErrorMessage as KeyErrorMessage
from torch.utils.data import dataloader
from torch.utils.data._utils import collate as collate
from torch.utils.data._utils import pin_memory as pin_memory
from torch.utils.data._utils import worker as worker

BaseIterator = dataloader._BaseDataLoaderIter
DatasetKind = dataloader._DatasetKind
share_dist_seed = dataloader._share_dist_seed
sharding_worker_init_fn = dataloader._sharding_worker_init_fn
generate_state = worker._generate_state
profiler_enabled = torch.autograd._profiler_enabled
