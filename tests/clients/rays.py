"""A dataset over Ray's actors that worker processes can be sent: it knows names, not handles."""

import torch.utils.data


class ByName(torch.utils.data.IterableDataset):
    """The batches of named actors, each worker's and rank's share of them."""

    def __init__(self, address, names, rank=0, world=1):
        self.address, self.names = address, names[rank::world]

    def __iter__(self):
        import ray

        ray.init(self.address, namespace="slipring", log_to_driver=False, ignore_reinit_error=True)
        info = torch.utils.data.get_worker_info()
        for name in self.names[info.id :: info.num_workers]:
            actor = ray.get_actor(name)
            while (batch := ray.get(actor.next.remote())) is not None:
                yield batch
