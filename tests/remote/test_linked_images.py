"""Images that a table names by paths, relative to its URL or as URLs of their own."""

import pytest

import slipring
from slipring import images
from slipring.errors import ImageError, RemoteError
from tests.support.pictures import encoded, pixels

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PICTURES = [encoded(pixels(30, 40, number), "PNG") for number in range(4)]


@pytest.fixture
def photos(tmp_path):
    """Return the folder of a table, whose images lie next to it and above it."""
    for number, name in enumerate(["a/b/0 ü?#.png", "a/1.png", "2.png", "a/b/photos/3.png"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(PICTURES[number])
    return tmp_path


def table(folder, paths):
    rows = pa.array([{"bytes": None, "path": path} for path in paths])
    pq.write_table(pa.table({"image": rows, "label": range(len(paths))}), folder / "a/b/rows.parquet")
    return "a/b/rows.parquet"


RELATIVE = ["0 ü?#.png", "../1.png", "../../2.png", "photos/3.png"]


def memory(folder):
    """Copy a folder to fsspec's file system in memory; return its URL."""
    import fsspec

    system = fsspec.filesystem("memory")
    system.put(str(folder) + "/", f"/{folder.name}/", recursive=True)
    return f"memory://{folder.name}"


def test_a_relative_path_begins_at_the_url_of_its_table(photos, serve):
    name = table(photos, RELATIVE)
    for url in (f"{serve(photos).url}/{name}", f"{serve(photos).url}/{name}?token=1", f"{memory(photos)}/{name}"):
        data = images.Parquet(url)
        assert [data.read(n) for n in range(4)] == list(zip(PICTURES, range(4)))


def test_paths_of_a_file_system_are_its_own(photos):
    import fsspec

    name = table(photos, ["0 ü?#.png", "../1.png", str(photos / "2.png"), "photos/3.png"])
    storage = slipring.Storage(fsspec.filesystem("file"))
    data = images.Parquet(str(photos / name), storage=storage)
    assert [data.read(n) for n in range(4)] == list(zip(PICTURES, range(4)))


def test_a_url_in_a_table_of_this_machine_is_read(photos, serve):
    url = serve(photos).url
    data = images.Parquet(photos / table(photos, [f"{url}/2.png", f"{url}/none.png"]), images.CenterCrop(8))
    assert data.read(0) == (PICTURES[2], 0)
    with pytest.raises(RemoteError, match=r"none\.png") as caught:
        data[1]
    assert caught.value.missing and caught.value.index == 1


@pytest.mark.parametrize("scheme", ["", "file://", "local://"])
def test_a_table_at_a_url_reads_no_file_of_this_machine(photos, serve, scheme):
    name = table(photos, [f"{scheme}{photos}/2.png"])
    with pytest.raises(ImageError, match="a file at a URL cannot name a file of this machine"):
        images.Parquet(f"{serve(photos).url}/{name}")[0]
