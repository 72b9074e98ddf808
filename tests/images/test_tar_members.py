"""Tar shards of every format and with every kind of member, damaged ones, and samples that lack a file."""

import functools
import io
import os
import shutil
import subprocess
import tarfile

import numpy as np
import pytest

import slipring
from slipring import images
from slipring.errors import ImageError
from tests.support.pictures import encoded, pixels
from tests.support.shards import files, plain, shard

FIT = images.Resize((12, 16))
KINDS = (images.Tar, images.TarStream)


def of_type(name, kind, link=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


hard = functools.partial(of_type, kind=tarfile.LNKTYPE)
symbolic = functools.partial(of_type, kind=tarfile.SYMTYPE)


def packed(path, members, **options):
    """Write a shard of (name or TarInfo, bytes)."""
    with tarfile.open(path, "w", **options) as file:
        for name, data in members:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def extracted(path, names):
    """Return the bytes of members, as Python's tarfile extracts them."""
    with tarfile.open(path, errors="surrogateescape") as file:
        return [file.extractfile(name).read() for name in names]


SPARSE = ["oldgnu", "gnu", *(f"pax --sparse-version={version}" for version in ("0.0", "0.1", "1.0"))]


@pytest.fixture(params=SPARSE)
def sparse(request, tmp_path):
    """Return a function that packs these files; those with a name in `holes` are sparse."""
    if shutil.which("tar") is None or b"GNU tar" not in subprocess.check_output(["tar", "--version"]):
        pytest.skip("only GNU tar writes every format of sparse members")

    def pack(content, holes):
        for name, data in content:
            with open(tmp_path / name, "wb") as file:
                file.write(data)
                if name in holes:
                    file.seek(1 << 20)
                    file.write(b"end")
            if name in holes and os.stat(tmp_path / name).st_blocks >= 2048:
                pytest.skip("this file system has no sparse files")
        arguments = f"--sparse --format={request.param} -cf s.tar".split()
        subprocess.run(["tar", *arguments, *(name for name, _ in content)], cwd=tmp_path, check=True)
        return tmp_path / "s.tar"

    return pack


def named(content):
    return [(os.path.basename(name), data) for name, data in content]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sparse_member_is_refused_by_name_if_a_sample_needs_it(sparse, kind):
    content = named(files(3))
    for hole, what in (("0001.jpg", "image"), ("0001.cls", "target")):
        with pytest.raises(ValueError, match=rf"sample 0001 of .*s\.tar has a sparse {what} \(tar --sparse\)"):
            kind(sparse(content, {hole}), FIT)
    data = kind(sparse(content, {"0000.png"}), FIT, on_error="skip")
    assert [label for _, label in data] == [1, 2] if kind is images.TarStream else data[0][1] == 1


def test_a_sparse_member_that_no_sample_needs_moves_no_other(sparse):
    content = named(files(3))
    data = images.Tar(sparse(content, {"0000.json"}), FIT)
    for number in range(3):
        assert data.read(number) == (content[3 * number][1], number)


@pytest.mark.parametrize("kind", KINDS)
def test_links_are_the_files_that_they_lead_to(tmp_path, kind):
    a, b = encoded(pixels(8, 8), "PNG"), encoded(pixels(9, 9, 1), "PNG")
    members = [
        (symbolic("./x/first.png", link="../y/b.png"), b""),  # to a later member
        ("./x/a.png", a),
        (hard("./x/again.png", link="./x/a.png"), b""),
        (symbolic("./y/link.png", link="../x/again.png"), b""),  # to a link
        ("./y/b.png", b),
    ]
    path = packed(tmp_path / "links.tar", members)
    names = [name.name if isinstance(name, tarfile.TarInfo) else name for name, _ in members]
    assert extracted(path, names[1:3]) == [a, a]  # Python's looks up a symbolic link by another spelling
    data = kind(path, target=None)
    want = [("./x/first", b), ("./x/a", a), ("./x/again", a), ("./y/link", a), ("./y/b", b)]
    for (image, key), (name, source) in zip(data, want, strict=True):
        assert key == name and np.array_equal(image, images.decode(source))


@pytest.mark.parametrize(
    "link",
    [
        symbolic("0.png", link="/tmp/0.png"),
        symbolic("0.png", link="../0.png"),
        symbolic("0.png", link="0.png"),
        hard("0.png", link="none.png"),
        symbolic("0.png", link="folder"),
    ],
    ids=lambda member: f"{member.type.decode()} {member.linkname}",
)
def test_a_link_to_no_file_of_the_shard_is_refused(tmp_path, link):
    path = packed(tmp_path / "0.tar", [(of_type("folder", tarfile.DIRTYPE), b""), (link, b""), ("0.cls", b"3")])
    with pytest.raises(ValueError, match=r"sample 0 of .* has a link as its image, to a file that the shard does not"):
        images.Tar(path)


LONG = "folder " * 30 + "/" + "n" * 120


@pytest.mark.parametrize(
    ("format", "names"),
    [
        (tarfile.USTAR_FORMAT, ["a/0", "d" * 90 + "/" + "e" * 90]),
        (tarfile.GNU_FORMAT, ["a/0", LONG, "é/ü", "\udcff/\udcfe"]),
        (tarfile.PAX_FORMAT, ["a/0", LONG, "é/ü", "\udcff/\udcfe"]),
    ],
)
@pytest.mark.parametrize("index", ["memory", "sidecar"])
def test_names_of_every_format_are_whole(tmp_path, format, names, index):
    content = [(encoded(pixels(8, 8, n), "PNG"), b"%d" % n) for n in range(len(names))]
    members = [file for name, pair in zip(names, content) for file in zip((f"{name}.png", f"{name}.cls"), pair)]
    options = {"format": format, "encoding": "utf-8", "errors": "surrogateescape"}
    if format == tarfile.PAX_FORMAT:
        options["pax_headers"] = {"comment": "for all members"}
    path = packed(tmp_path / "0.tar", members, **options)
    assert extracted(path, [name for name, _ in members]) == [data for _, data in members]
    for _ in range(2):  # the index is made, and read if it is kept
        data = images.Tar(path, index=index)
        assert list(data.keys) == names
        assert [data.read(n) for n in range(len(data))] == [(image, int(label)) for image, label in content]


def rewritten(path, name, change):
    """Change the header of a member; its checksum becomes right again."""
    with tarfile.open(path) as file:
        at = file.getmember(name).offset
    content = bytearray(path.read_bytes())
    header = content[at : at + 512]
    change(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content[at : at + 512] = header
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", [b"\0", b"7"])
def test_sizes_in_base_256_and_old_types_of_files_are_read(tmp_path, kind):
    def change(header):
        header[124:136] = b"\x80" + int(header[124:135], 8).to_bytes(11, "big")
        header[156:157] = kind

    content = dict(files(2))
    path = rewritten(shard(tmp_path / "0.tar", content.items()), "a/0000.png", change)
    assert images.Tar(path).read(0) == (content["a/0000.png"], 0)
    assert images.Tar(path).read(1) == (content["a/0001.jpg"], 1)


def negative(header):
    header[124:136] = (-1024).to_bytes(12, "big", signed=True)


def beyond_the_end(header):
    header[124:136] = b"77777777777\0"


@pytest.mark.parametrize("size", [negative, beyond_the_end])
@pytest.mark.parametrize("kind", KINDS)
def test_an_impossible_size_is_refused(tmp_path, kind, size):
    path = rewritten(shard(tmp_path / "0.tar", files(2)), "a/0001.json", size)
    with pytest.raises(ValueError, match=r"0\.tar is no tar file, or a compressed or damaged one"):
        kind(path)


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_header_is_not_the_end_of_a_shard(tmp_path, cut):
    path = shard(tmp_path / "0.tar", files(3))
    with tarfile.open(path) as file:
        at = file.getmember("a/0001.jpg").offset
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content[: at + 100] if cut else content)
    with pytest.raises(ValueError, match=rf"the header at byte {at} cannot be read"):
        images.Tar(path)
    path.write_bytes(content[:at])  # an archive may end without blocks of zeros
    assert list(images.Tar(path).keys) == ["a/0000"]


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("kind", KINDS)
def test_compressed_shards_are_refused(tmp_path, kind, mode):
    with pytest.raises(ValueError, match="is no tar file, or a compressed"):
        kind(shard(tmp_path / "0.tar", files(2), mode))


# ---- samples that lack a file

LACKING = {"a/0001.cls": "target", "a/0003.png": "image"}


@pytest.fixture
def lacking(tmp_path):
    content = [(name, data) for name, data in files(7) if name not in LACKING]
    return shard(tmp_path / "lacking.tar", content)


@pytest.mark.parametrize("index", ["memory", "sidecar"])
def test_incomplete_samples_are_skipped_like_unreadable_images(lacking, index, caplog):
    for _ in range(2):  # the index is made, and read if it is kept
        data = images.Tar(lacking, FIT, index=index, on_error="skip")
        assert len(data) == 7 and data.keys[3] == "a/0003"
        for number, used in enumerate([0, 2, 2, 4, 4, 5, 6]):
            image, label = data[number]
            assert label == used and np.array_equal(image, plain(used, FIT))
        with pytest.raises(ValueError, match=r"sample a/0001 of .* has no target: none .* ends in cls.* has jpg, json"):
            images.Tar(lacking, FIT, index=index)
    says = [record.getMessage() for record in caplog.records[:2]]
    assert says == [
        f"skipped a/0001 in {lacking} (index 1): the sample has no target: none of its files ends in cls, as target= "
        "says",
        f"skipped a/0003 in {lacking} (index 3): the sample has no image: none of its files ends in jpg or jpeg or "
        "png or webp, as image= says",
    ]
    with slipring.Loader(data, 7, num_workers=1) as loader:
        assert next(iter(loader))[1].tolist() == [0, 2, 2, 4, 4, 5, 6]
        assert loader.stats().skipped_samples == 2


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_without_its_incomplete_samples_resumes_exactly(lacking, workers, shuffle):
    whole = shard(lacking.with_name("whole.tar"), files(5, 20))

    def loader():
        data = images.TarStream([lacking, whole], images.RandomResizedCrop(8), shuffle=shuffle, on_error="skip")
        return slipring.Loader(data, 2, num_workers=workers, seed=3)

    def rows(batches):
        return [(image.tobytes(), int(label)) for pair in batches for image, label in zip(*pair)]

    with loader() as once:
        every = rows(once)
    assert sorted(label for _, label in every) == sorted([0, 2, 4, 5, 6, *(n % 7 for n in range(20, 25))])
    for taken in range(1, 5):
        with loader() as begun, loader() as resumed:
            batches = iter(begun)
            read = rows([next(batches) for _ in range(taken)])
            resumed.load_state_dict(begun.state_dict())
            assert read + rows(resumed) == every


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_without_a_complete_sample_is_refused_in_any_case(lacking, kind):
    with pytest.raises(ValueError, match=r"has no target: none of its files ends in txt"):
        kind(lacking, FIT, target="txt", on_error="skip")


def test_an_incomplete_sample_is_refused_by_name_before_it_is_read(lacking):
    data = images.Tar(lacking, FIT, on_error="skip")
    with pytest.raises(ImageError, match="the sample has no image"):
        data.read(3)


def test_a_shard_whose_path_is_no_utf_8_has_its_index_in_a_folder(tmp_path):
    path = shard(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.tar"), files(3))
    for _ in range(2):
        assert images.Tar(path, FIT, index=tmp_path / "kept")[2][1] == 2
        assert len(os.listdir(tmp_path / "kept")) == 1
