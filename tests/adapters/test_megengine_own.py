"""slipring.adapters.megengine in a program that still uses MegEngine's own get_worker_info()."""

import sys

import pytest

from tests.support import warm

# The part of MegEngine that holds a worker's info, in MegEngine's place.
STAND_IN = {
    "megengine/__init__.py": "",
    "megengine/data/__init__.py": "from . import dataloader\n",
    "megengine/data/dataloader.py": """
_worker_info = None


class WorkerInfo:
    def __init__(self, **known):
        self.__dict__.update(known)


def get_worker_info():
    return _worker_info
""",
}
PROGRAM = """
import multiprocessing
import sys
{at_the_top}
import slipring.adapters.megengine as mge


class Shares(mge.StreamDataset):
    def __iter__(self):
        {in_the_worker}
        theirs, ours = get_worker_info(), mge.get_worker_info()
        assert type(theirs).__module__ == "megengine.data.dataloader"
        assert vars(theirs) == vars(ours), (vars(theirs), vars(ours))
        yield from range(theirs.idx, 7, theirs.worker)


class Nobody:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        from megengine.data.dataloader import get_worker_info

        return get_worker_info() is None


if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    loader = mge.DataLoader(Shares(), mge.StreamSampler(2), num_workers=2, parallel_stream=True)
    for _ in range(2):
        print(sorted(i for batch in loader for i in batch.tolist()))
    print([batch.tolist() for batch in mge.DataLoader(Nobody(), num_workers=2)])
    from megengine.data.dataloader import get_worker_info

    print(get_worker_info())
"""
IMPORT = "from megengine.data.dataloader import get_worker_info"


@pytest.mark.parametrize(("method", "where"), [("fork", "in_the_worker"), ("spawn", "at_the_top")])
def test_megengines_own_worker_info_names_our_workers(tmp_path, method, where):
    for name, text in {**STAND_IN, "program.py": None}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        imports = {"at_the_top": "", "in_the_worker": "", where: IMPORT}
        path.write_text(PROGRAM.format(**imports) if text is None else text)
    done = warm.run([sys.executable, "program.py", method], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        *["[0, 1, 2, 3, 4, 5, 6]"] * 2, "[[True], [True], [True], [True]]", "None",
    ], done.stderr  # fmt: skip
