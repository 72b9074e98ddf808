"""A repr that raises hides no error: the message still says what is wrong with a user's object."""

import re

import pytest

import slipring
from slipring import images
from tests.support.datasets import Unshowable

SAID = "whose repr raises ZeroDivisionError"

WRONG = {
    "a transform": (lambda: images.Bytes([], Unshowable()), "transform must be of slipring.images"),
    "a size": (lambda: images.Resize(Unshowable()), "must be a number of pixels"),
    "a range": (lambda: images.RandomResizedCrop(8, scale=Unshowable()), "scale must be two numbers"),
    "a key": (lambda: images.Bytes([{Unshowable(): 1}], image=Unshowable(), target=2)[0], "has no"),
    "a queue's place": (lambda: slipring.Queue(1, backing=Unshowable()), "backing must be"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_named_though_its_repr_raises(wrong, message):
    with pytest.raises((TypeError, ValueError), match=f"{re.escape(message)}.*{SAID}"):
        wrong()


def test_columns_and_elements_are_named_though_their_reprs_raise(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from slipring.arrow import TableDataset

    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, pa.schema([("a", pa.int64())])) as out:
        out.write_table(pa.table({"a": [1, 2]}))
    with pytest.raises((TypeError, ValueError), match=SAID):
        TableDataset(path, columns=[Unshowable()])
    with pytest.raises(TypeError, match="element 1 of a StringList is no string, but of type Unshowable"):
        slipring.StringList(["a", Unshowable()])


def test_samples_are_collated_though_a_keys_repr_raises():
    key = Unshowable()
    batch = slipring.default_collate([{key: 1}, {key: 2}])
    assert batch[key].tolist() == [1, 2]
    where = rf"at \[<a Unshowable {SAID}>\]: sample 0 has type int, sample 1 has type str"
    with pytest.raises(ValueError, match=where):
        slipring.default_collate([{key: 1}, {key: "x"}])
    with pytest.raises(ValueError, match=r"sample 0 has keys .*sample 1 has keys"):
        slipring.default_collate([{key: 1}, {3: 2}])
