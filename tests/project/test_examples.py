"""The examples in docstrings of public names, compiled ones too, run and print the documented output."""

import doctest
import importlib
import inspect
import io
import re
import tarfile
import warnings
from pathlib import Path

import pytest

import slipring

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
# Public module -> its requirements in addition to numpy.
MODULES = {
    "slipring": ["pyarrow", "tqdm"],
    "slipring.broadcast": [],
    "slipring.queue": [],
    "slipring.errors": [],
    "slipring.monitor": ["prometheus_client", "tqdm"],
    "slipring.images": ["PIL", "pyarrow"],
    "slipring.arrow": ["pyarrow", "PIL"],
    "slipring.clips": ["av", "pyarrow"],
    "slipring.torch": ["torch"],
    "slipring.adapters.di_engine": ["torch"],
    "slipring.adapters.megengine": [],
    "slipring.adapters.paddle": [],
    "slipring.adapters.torchdata": ["torch"],
    "slipring.adapters.webdataset": [],
}


def public(module):
    """Yield (name, object) for the public names of an imported module and the members of its classes."""
    for name in module.__all__:
        value = getattr(module, name)
        yield f"{module.__name__}.{name}", value
        if inspect.isclass(value):
            for kind in value.__mro__:
                if kind.__module__.startswith("slipring"):
                    for member, inner in vars(kind).items():
                        if not member.startswith("_"):
                            yield f"{module.__name__}.{name}.{member}", inner


def examples(module):
    """Return the doctests of a module and of its public names."""
    parser, found = doctest.DocTestParser(), []
    for name, value in [(module.__name__, module), *public(module)]:
        text = inspect.getdoc(value) if not isinstance(value, (str, int, tuple)) else None
        if text and ">>>" in text:
            found.append(parser.get_doctest(text, {"__name__": "__main__"}, name, None, None))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a few images as files, in a tar file and in a table, and with videos, for the examples."""
    folder = tmp_path_factory.mktemp("examples")
    write_videos(folder / "videos")
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from PIL import Image
    except ImportError:
        return folder
    rows = []
    with tarfile.open(folder / "train.tar", "w") as tar:
        for number, (kind, label) in enumerate([("cat", 0), ("cat", 0), ("dog", 1), ("dog", 1)]):
            path = folder / "train" / kind / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 30), (60 * number, 90, 120)).save(path)
            rows.append({"image": path.read_bytes(), "label": label})
            for ending, contents in (("jpg", rows[-1]["image"]), ("cls", str(label).encode())):
                entry = tarfile.TarInfo(f"{kind}/{number}.{ending}")
                entry.size = len(contents)
                tar.addfile(entry, io.BytesIO(contents))
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    return folder


def write_videos(folder):
    try:
        from tests.support.robots import write_dataset
        from tests.support.videos import write, write_with_sound
    except ImportError:
        return
    write_dataset(folder.with_name("robot"))
    folder.mkdir()
    for name in ("a.mp4", "b.mp4"):
        write(folder / name, frames=60)
    write_with_sound(folder / "sound.mp4", rate=16_000)


def imported(name):
    for needed in MODULES[name]:
        pytest.importorskip(needed)
    return importlib.import_module(name)


@pytest.mark.usefixtures("forked")  # classes of a console cannot be sent to a process
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_print_the_documented_output(name, folder, monkeypatch):
    module = imported(name)
    monkeypatch.chdir(folder)
    told, found = [], examples(module)
    if name == "slipring":  # also those of functions that the compiler makes
        assert {"slipring.empty", "slipring.default_collate"} <= {example.name for example in found}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in found:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
            warnings.filterwarnings("ignore", "derived from torch's DataLoader before")  # by other tests, here
            runner.run(example, out=told.append)
    assert not told, "".join(told)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_in_the_reference_and_every_class_has_an_example(name):
    """`slipring.errors` has one example for all exceptions."""
    module = imported(name)
    values = [getattr(module, public_name) for public_name in module.__all__]
    classes = [value for value in values if inspect.isclass(value) and not issubclass(value, Exception)]
    without = [kind.__name__ for kind in classes if ">>>" not in (kind.__doc__ or "")]
    assert not without, f"these have no example: {', '.join(without)}"
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    named = set(re.findall(r"auto(?:class|function|data|module):: ([\w.]+)", text))
    elsewhere = {"__version__", *(slipring.errors.__all__ if name != "slipring.errors" else ())}
    if not re.search(rf"automodule:: {name}\n   :members:", text):
        names = [public_name for public_name in module.__all__ if public_name not in elsewhere]
        missing = [public_name for public_name in names if not named & {public_name, f"{name}.{public_name}"}]
        assert not missing, f"add to docs/reference: {', '.join(missing)}"
