"""What cannot share a pool is refused by an error that says why, and leaves nothing behind."""

import itertools
import os
import pickle
import socket
import subprocess
import sys
import uuid

import pytest
from PIL import Image

from slipring import Loader, Workers
from tests.pool.rank import Rank, parent_of, ranks, wait_gone
from tests.support.inside import NoJob, attach, pool_client
from tests.support.processes import ROOT


class Counter:
    """An iterable dataset."""

    def __iter__(self):
        return itertools.count()


class Stateful(list):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rng": "worker"}, r"Workers\(pool='node'\) and rng='worker' exclude each other"),
        ({"num_workers": "auto"}, "needs a fixed num_workers="),
        ({"workers": Workers(pool="node", start_method="spawn")}, "start_method='spawn' exclude each other"),
        ({"dataset": Counter()}, "pool=node cannot be used with an iterable dataset"),
    ],
)
def test_options_that_a_pool_excludes_are_refused_at_once(options, text):
    with pytest.raises(ValueError, match=text):
        Loader(options.pop("dataset", range(8)), **{"num_workers": 1, "workers": Workers(pool="node"), **options})


@pytest.mark.parametrize("name", ["", 3, True])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(TypeError, match=r"pool must be 'node', another name of a pool, or None, not"):
        Workers(pool=name)


def test_a_dataset_with_a_state_is_refused():
    loader = Loader(Stateful(range(8)), num_workers=1, workers=Workers(pool="node"))
    with loader, pytest.raises(ValueError, match="cannot read a Stateful dataset"):
        iter(loader)


def test_the_number_of_workers_cannot_be_changed():
    loader = Loader(range(8), num_workers=1, workers=Workers(pool="node"))
    with loader, pytest.raises(ValueError, match="num_workers=2: the workers of pool='node' serve other loaders too"):
        loader.resize(2)


@pytest.mark.parametrize(
    ("differs", "text"),
    [
        ({"data": {"n": 64, "root": "there"}}, "dataset.root is 'there' here and 'here' there"),
        ({"data": {"n": 64, "files": [["b", 1]]}}, "dataset.files is '1 items (digest "),
        ({"data": {"n": 65}}, "len(dataset) is 65 here and 64 there"),
        ({"num_workers": 3}, "num_workers is 3 here and 2 there"),
        ({"worker_init_fn": "init_badly"}, "worker_init_fn is 'tests.pool.rank.init_badly' here and None there"),
    ],
)
def test_ranks_that_disagree_get_an_error_that_names_what_differs(differs, text):
    with ranks(1, data={"n": 64, "files": [["a", 1]]}) as (first,), Rank() as second:
        first.ask("batch")
        differs = {**differs, "data": {"n": 64, "files": [["a", 1]], **differs.get("data", {})}}
        second.ask("make", **{"pool": first.name, "num_workers": 2, **differs})
        answer = second.ask("epoch")
        assert answer["error"] == "ValueError"
        assert text in answer["text"] and f"process {first.pid}" in answer["text"]
        assert first.ask("epoch")["pids"]


@pytest.mark.parametrize("kind", ["numpy", "rows", "scalar", "torch", "StringList", "text"])
def test_ranks_that_have_divided_their_dataset_get_an_error(kind):
    if kind in ("torch", "StringList"):
        pytest.importorskip({"torch": "torch", "StringList": "pyarrow"}[kind])
    with ranks(1, dataset="Holding", data={"n": 64, "kind": kind, "values": [*range(0, 4000, 2)]}) as (first,):
        first.ask("batch")
        with Rank() as second:
            data = {"n": 64, "kind": kind, "values": [*range(1, 4001, 2)]}
            second.ask("make", pool=first.name, num_workers=2, dataset="Holding", data=data)
            answer = second.ask("epoch")
        assert answer["error"] == "ValueError" and "dataset.held is " in answer["text"]


@pytest.mark.parametrize(
    ("dataset", "more", "name"),
    [
        ("Wrapping", {"wraps": "dataset"}, "dataset.dataset.held is '"),
        ("Wrapping", {"wraps": "datasets"}, "dataset.datasets[1].held is '"),
        ("listed", {}, "dataset is 'builtins.list of "),
    ],
)
def test_so_do_ranks_that_have_divided_a_list_or_what_a_wrapper_reads(dataset, more, name):
    data = {"n": 64, "kind": "numpy", **more}
    with ranks(1, dataset=dataset, data={**data, "values": [*range(0, 128, 2)]}) as (first,), Rank() as second:
        first.ask("batch")
        data["values"] = [*range(1, 129, 2)]
        second.ask("make", pool=first.name, num_workers=2, dataset=dataset, data=data)
        answer = second.ask("epoch")
        assert answer["error"] == "ValueError" and f"{name}64 items (digest" in answer["text"]


@pytest.mark.parametrize(("kind", "name"), [("partial", "args[0]"), ("method", "factor")])
def test_ranks_whose_functions_have_other_arguments_get_an_error(kind, name):
    with ranks(1, scale=[kind, 2]) as (first,), Rank() as second:
        first.ask("batch")
        second.ask("make", pool=first.name, num_workers=2, scale=[kind, 3])
        answer = second.ask("epoch")
        assert answer["error"] == "ValueError" and f"collate_fn.{name} is 3 here and 2 there" in answer["text"]


@pytest.mark.parametrize(
    ("dataset", "data"),
    [("Rows", {"root": float("nan")}), ("Photographs", {}), ("Itself", {}), ("Unready", {}), ("Augmenting", {})],
)
def test_equal_datasets_do_not_differ(dataset, data, tmp_path):
    if dataset == "Photographs":
        data = {"folder": str(tmp_path)}
        (tmp_path / "cat").mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "0.png")
    with ranks(2, dataset=dataset, data={"n": 64, **data}) as started:
        assert all("error" not in rank.ask("epoch") for rank in started)


OWN_CLASSES = """
import enum
import pathlib
import sys
from slipring import Loader, Workers

class Split(str, enum.Enum):
    TRAIN = "train"

class Rows(list):
    def __init__(self, n):
        super().__init__(range(n))
        self.split, self.splits = Split.TRAIN, [Split.TRAIN]

if __name__ == "__main__":
    sys.path.insert(0, pathlib.Path("libraries"))
    with Loader(Rows(8), num_workers=1, workers=Workers(pool="test-own-classes")) as loader:
        print(len(list(loader)))
"""


def printed_by(program, folder):
    """Run a program as a script; return what it prints."""
    path = folder / "program.py"
    path.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, path], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_attributes_of_the_main_modules_classes_are_compared(tmp_path):
    assert printed_by(OWN_CLASSES, tmp_path) == "8\n"


@pytest.mark.parametrize("reason", ["other", "no file", "no more"])
def test_a_dataset_that_the_pool_cannot_load_is_an_error_with_the_traceback_in_each_rank(reason):
    with ranks(2, dataset="Refused", data={"n": 64, "root": reason}) as started:
        for rank in started:
            rank.begin("epoch")
        for rank in started:
            answer = rank.answer()
            assert answer["error"] == "SlipringError" and "could not load the dataset or serve" in answer["text"]
            assert "in __setstate__" in answer["text"] and "cannot be loaded" in answer["text"]
            with pytest.raises(NoJob, match="has no segment of slipring's open"):  # although the loader lives
                attach(rank.pid)


def test_a_dataset_that_kills_the_pool_is_an_error_at_the_first_attempt(tmp_path):
    with ranks(1, dataset="Deadly", data={"n": 8, "root": str(tmp_path / "attempts")}) as (rank,):
        answer = rank.ask("epoch")
        assert answer["error"] == "WorkerDied" and "has died, and its workers with it" in answer["text"]
    assert len((tmp_path / "attempts").read_text()) == 1


def test_a_dataset_that_cannot_be_pickled_is_named():
    workers = Workers(pool=f"test-{uuid.uuid4().hex}")
    loader = Loader(range(8), num_workers=1, collate_fn=lambda samples: samples, workers=workers)
    text = r"collate_fn \(function\) cannot be pickled, which Workers\(pool='test"
    with loader, pytest.raises((AttributeError, pickle.PicklingError), match=text):
        iter(loader)


LIMITED = """
import resource
from slipring import Loader, Workers

if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Loader(range(40), num_workers=1, workers=Workers(pool="test-limited")) as loader:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        iterations = [iter(loader)]  # it starts the pool
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        iterations += [iter(loader) for _ in range(40)]
        print(sum(len(list(each)) for each in iterations))
"""


def test_a_pool_serves_more_loaders_than_the_soft_limit_of_open_files_of_its_first_rank_allows(tmp_path):
    assert printed_by(LIMITED, tmp_path) == "1640\n"


UNGUARDED = """
import slipring
with slipring.Loader(range(8), num_workers=1, workers=slipring.Workers(pool="test-unguarded")) as loader:
    list(loader)
"""
NESTED = """
import slipring
from slipring import Loader, Workers

class Nested:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        with Loader(range(8), num_workers=1, workers=Workers(pool="test-nested")) as loader:
            return len(list(loader))

if __name__ == "__main__":
    with Loader(Nested(), num_workers=1, workers=Workers(pool="test-nested")) as loader:
        list(loader)
"""


@pytest.mark.parametrize("program", [UNGUARDED, NESTED])
def test_a_loader_that_begins_in_the_pool_itself_is_an_error(tmp_path, program):
    path = tmp_path / "program.py"
    path.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "a loader with a pool began in the pool's own process" in done.stderr


def test_an_error_in_worker_init_fn_is_raised_for_each_batch():
    with ranks(2, worker_init_fn="init_badly") as started:
        for rank in started:
            answer = rank.ask("batch")
            assert answer["error"] == "LookupError" and "cannot begin" in answer["text"]


def test_a_job_that_is_started_again_gets_a_pool_of_its_own_while_the_old_one_lives():
    job = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29876", "TORCHELASTIC_RUN_ID": uuid.uuid4().hex}
    with Rank(**job, TORCHELASTIC_RESTART_COUNT="0") as old, Rank(**job, TORCHELASTIC_RESTART_COUNT="1") as new:
        pools = []
        for number, rank in enumerate((old, new)):
            rank.ask("make", pool="node", num_workers=1, data={"n": 64 + number})
            pools.append(parent_of(rank.ask("epoch")["pids"][0]))
        assert pools[0] != pools[1]
        old.kill()
        wait_gone(pools[0])
        assert new.ask("epoch")["pids"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_pool_of_another_user_is_refused():
    name = f"test-{uuid.uuid4().hex}"
    address = pool_client.address_of(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        os.seteuid(65534)
        try:
            listener.listen()
        finally:
            os.seteuid(0)
        loader = Loader(range(8), num_workers=1, workers=Workers(pool=name))
        with loader, pytest.raises(PermissionError, match="of user 65534 listens at the address"):
            iter(loader)
