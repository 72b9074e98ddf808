"""The interface of an inference engine's shared-memory message queue (vLLM's), for readers on one machine."""

import multiprocessing

import slipring
from slipring.errors import Closed


class MessageQueue:
    def __init__(self, n_reader, n_local_reader, local_reader_ranks=None, max_chunk_bytes=24 << 20, max_chunks=10):
        ranks = list(range(n_local_reader) if local_reader_ranks is None else local_reader_ranks)
        if n_reader != n_local_reader:
            raise ValueError(f"{n_reader - n_local_reader} of {n_reader} readers are remote, and none may be")
        if len(ranks) != n_local_reader:
            raise ValueError(f"local_reader_ranks={ranks} names {len(ranks)} readers, not {n_local_reader=}")
        # Slots grow with their messages, so messages above max_chunk_bytes need no way of their own.
        self.end = slipring.Broadcast(n_local_reader, max_chunks)
        self.handle = ranks, self.end.handle

    @classmethod
    def create_from_handle(cls, handle, rank):
        self, (ranks, broadcast) = cls.__new__(cls), handle
        if rank not in ranks:
            raise ValueError(f"rank {rank} is not one of the readers on this machine, {ranks}")
        self.end, self.handle = broadcast.open(ranks.index(rank), spin=50), handle
        return self

    def export_handle(self):
        return self.handle

    def wait_until_ready(self):
        self.end.wait_until_ready()

    def enqueue(self, obj, timeout=None):
        self.end.put(obj, timeout)

    def dequeue(self, timeout=None, indefinite=False):
        """Return the next object; None after `shutdown`. Any wait may be long here, so `indefinite` changes nothing."""
        try:
            return self.end.get(timeout)
        except Closed:
            return None

    def broadcast_object(self, obj=None):
        if not isinstance(self.end, slipring.Broadcast):
            return self.dequeue()
        self.enqueue(obj)
        return obj

    @property
    def shutting_down(self):
        return self.end.closed

    def shutdown(self):
        self.end.close()


def work(handle, rank, answers):
    queue = MessageQueue.create_from_handle(handle, rank)
    own = MessageQueue(1, 1)  # for this worker's answers; the executor reads them
    answers.send(own.export_handle())
    queue.wait_until_ready()
    own.wait_until_ready()
    while (request := queue.dequeue(indefinite=True)) is not None:
        method, args = request
        own.enqueue((rank, method, sum(args)))
    own.shutdown()


def main(world_size=2):
    requests = MessageQueue(world_size, world_size)
    workers, handles = [], []
    for rank in range(world_size):
        receiver, sender = multiprocessing.Pipe(duplex=False)
        workers.append(multiprocessing.Process(target=work, args=(requests.export_handle(), rank, sender)))
        workers[-1].start()
        handles.append(receiver.recv())
    answers = [MessageQueue.create_from_handle(handle, 0) for handle in handles]
    requests.wait_until_ready()
    for queue in answers:
        queue.wait_until_ready()
    for step in range(3):
        requests.enqueue(("execute_model", (step, 10)))
        print([queue.dequeue(timeout=60) for queue in answers])
    requests.shutdown()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
