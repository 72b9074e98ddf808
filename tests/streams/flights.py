"""A real Flight server on the loopback, and its readers: ``python -m tests.streams.flights reads|resumes``."""

import sys

import numpy as np
import pyarrow as pa
from pyarrow import flight

import slipring
from tests.support.options import grouped


class Tables(flight.FlightServerBase):
    """Sends numbers and their text; a ticket names the first, the last, and where the server stops (0: never)."""

    def do_get(self, context, ticket):
        first, stop, breaks = map(int, ticket.ticket.split())

        def batches():
            for at in range(first, stop, 30):
                if at >= breaks > 0:
                    raise flight.FlightUnavailableError("this node is going away")
                numbers = np.arange(at, min(at + 30, stop))
                yield pa.record_batch({"x": numbers, "t": [str(i) for i in numbers]})

        schema = pa.schema([("x", pa.int64()), ("t", pa.string())])
        return flight.GeneratorStream(schema, batches())


def read(server, first, stop, breaks=0):
    with flight.connect(("127.0.0.1", server.port)) as client:
        yield from client.do_get(flight.Ticket(f"{first} {stop} {breaks}".encode())).to_reader()


def reads(server):
    for way in ({}, {"num_workers": 2, "start_method": "thread", "timeout": 60}):
        workers = way.get("num_workers", 1)
        with slipring.stream(lambda w, n: read(server, 500 * w, 500 * w + 500), 64, **grouped(**way)) as loader:
            batches = list(loader)
        assert sorted(x for batch in batches for x in batch["x"].tolist()) == list(range(500 * workers))
        assert all(batch["t"].to_pylist() == [str(x) for x in batch["x"]] for batch in batches)


def resumes(server):
    """A server that ends causes an error with its text; another loader continues from the state."""
    seen, said = [], None
    with slipring.stream(read(server, 0, 500, breaks=240), 64, num_workers=1, timeout=60) as loader:
        try:
            for batch in loader:
                seen += batch["x"].tolist()
        except OSError as error:
            said = str(error)
        state = loader.state_dict()
    assert said is not None and "this node is going away" in said, said
    assert 0 < len(seen) <= 240 and len(seen) % 64 == 0
    with slipring.stream(read(server, 0, 500), 64, num_workers=1, timeout=60) as loader:
        loader.load_state_dict(state)
        for batch in loader:
            seen += batch["x"].tolist()
    assert seen == list(range(500))


if __name__ == "__main__":
    server = Tables("grpc://127.0.0.1:0")
    {"reads": reads, "resumes": resumes}[sys.argv[1]](server)
    server.shutdown()
    print("as it was sent")
