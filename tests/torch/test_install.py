"""install() and uninstall(): slipring's DataLoader replaces torch's, and torch's returns."""

import abc
import copy
import pickle
import sys
import types

import pytest

from slipring import Workers

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader, install, uninstall  # noqa: E402

# The globals of this module.
pytestmark = pytest.mark.filterwarnings("ignore:derived from torch's DataLoader before install")


class Torchs:
    """Keeps torch's class where no search finds it: install() replaces globals of this module, too."""

    DataLoader = torch.utils.data.DataLoader


Imported = torch.utils.data.DataLoader


class Named(torch.utils.data.DataLoader):
    """Derived from torch's class before install(); calls it by its name, as older code does."""

    def __init__(self, dataset, extra):
        torch.utils.data.DataLoader.__init__(self, dataset, batch_size=2)
        self.extra = extra

    def __iter__(self):
        return torch.utils.data.DataLoader.__iter__(self)


class Child(Named):
    pass


@pytest.fixture(autouse=True)
def torchs_again():
    """Uninstall after each test, however it ended."""
    yield
    while torch.utils.data.DataLoader is DataLoader:
        uninstall()


@pytest.fixture
def imported(monkeypatch):
    """A function that makes a module with given globals, and adds it to sys.modules for this test."""

    def make(kind=types.ModuleType, **names):
        made = kind("a_client")
        object.__getattribute__(made, "__dict__").update(names)
        monkeypatch.setitem(sys.modules, "a_client", made)
        return made

    return make


def test_ours_is_derived_from_torchs_also_while_installed():
    with install():
        assert Torchs.DataLoader in DataLoader.__mro__[1:]
        loader = torch.utils.data.DataLoader([1, 2], workers=Workers(chunk_size=1))
        assert isinstance(loader, Torchs.DataLoader) and loader.workers.chunk_size == 1
        assert [batch.tolist() for batch in loader] == [[1], [2]]
        assert loader.stats().batches == 2


def test_every_name_of_torchs_class_is_ours_while_installed_unless_other_code_changed_it(imported, monkeypatch):
    monkeypatch.setitem(sys.modules, "nothing", None)
    client = imported(**dict.fromkeys(("one", "two", "changed", "deleted"), Torchs.DataLoader), three=Named)
    with install():
        assert torch.utils.data.DataLoader is torch.utils.data.dataloader.DataLoader is DataLoader
        assert Imported is client.one is client.two is DataLoader
        assert client.three is Named
        client.changed = Named
        del client.deleted
    assert torch.utils.data.DataLoader is torch.utils.data.dataloader.DataLoader is Torchs.DataLoader
    assert Imported is client.one is client.two is Torchs.DataLoader
    assert client.changed is Named and "deleted" not in vars(client)


def test_a_module_that_loads_on_first_use_is_not_woken(imported):
    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was asked for")

    imported(Lazy, late=Torchs.DataLoader)
    with install():
        names = object.__getattribute__(sys.modules["a_client"], "__dict__")
        assert names["late"] is DataLoader
    assert names["late"] is Torchs.DataLoader


def test_calls_nest_and_a_second_call_finds_modules_imported_since(imported):
    with install():
        client = imported(DataLoader=Torchs.DataLoader)
        with install():
            assert client.DataLoader is DataLoader
        assert torch.utils.data.DataLoader is client.DataLoader is DataLoader
    assert torch.utils.data.DataLoader is client.DataLoader is Torchs.DataLoader
    with pytest.raises(RuntimeError, match="not installed"):
        uninstall()


def test_torchs_loaders_are_instances_of_the_installed_class_and_of_no_other():
    class Mine(DataLoader):
        pass

    stock, named = Torchs.DataLoader([1]), Named([1], "x")
    with install():
        for loader in (stock, named, Mine([1])):
            assert isinstance(loader, torch.utils.data.DataLoader)
            assert issubclass(type(loader), torch.utils.data.DataLoader)
        assert not isinstance([1], torch.utils.data.DataLoader)
        assert not issubclass(list, torch.utils.data.DataLoader)
        assert not isinstance(stock, Mine)
    assert not isinstance(stock, DataLoader)
    assert not issubclass(Named, DataLoader)


def test_classes_derived_from_torchs_before_still_work():
    with install():
        loader = Child(range(4), extra=3)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        assert len(loader) == 2 and loader.extra == 3
        with pytest.raises(ValueError, match="should not be set after"):
            loader.batch_size = 3


def test_a_module_that_asks_super_for_torchs_class_keeps_it(imported):
    source = """
class Old(DataLoader):
    def __len__(self):
        return super(DataLoader, self).__len__()
    """
    client = imported(DataLoader=Torchs.DataLoader)
    exec(source, vars(client))
    with install():
        with pytest.raises(AttributeError, match=r"'super' object has no attribute '__len__'"):
            len(client.Old([1]))
        assert client.DataLoader is Torchs.DataLoader


def test_classes_made_meanwhile_are_derived_from_ours():
    with install():

        class Mine(torch.utils.data.DataLoader):
            pass

        class Both(torch.utils.data.DataLoader[int], abc.ABC):
            pass

    assert issubclass(Mine, DataLoader) and len(Mine([1, 2])) == 2
    assert isinstance(Both([1]), abc.ABC)


@pytest.mark.parametrize("duplicate", [copy.copy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copied", "pickled"])
def test_torchs_loaders_are_copied_and_pickled_while_installed(duplicate):
    for before in (Torchs.DataLoader(range(5), 2), Named(range(5), 3)):
        with install():
            inside = duplicate(before)
            assert type(inside) is type(before)
            assert [batch.tolist() for batch in inside] == [[0, 1], [2, 3], [4]]
        after = duplicate(before)
        assert type(after) is type(before) and len(after) == 3


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_objects_pickled_while_installed_can_be_read_after(protocol):
    stock = Torchs.DataLoader(range(5), 2)
    before = pickle.dumps(stock, protocol)
    with install():
        assert type(pickle.loads(before)) is DataLoader
        ours = torch.utils.data.DataLoader(range(5), 2, workers=Workers(chunk_size=4))
        data = pickle.dumps((stock, ours), protocol)
    for loader, cls in zip(pickle.loads(data), (Torchs.DataLoader, DataLoader)):
        assert type(loader) is cls
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert pickle.loads(data)[1].workers.chunk_size == 4


def test_a_module_that_was_imported_meanwhile_keeps_our_class(imported):
    source = """
from slipring.torch import DataLoader as Wanted
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import dataloader
from torch.utils.data.dataloader import DataLoader as Deeper
"""
    with install():
        client = imported()
        exec(source, vars(client))
    assert client.DataLoader is client.Deeper is client.Wanted is DataLoader
    assert client.dataloader.DataLoader is torch.utils.data.DataLoader is Torchs.DataLoader
