"""Tar shards for the tests, in webdataset's layout."""

import io
import tarfile

from slipring import images
from tests.support.pictures import encoded, pixels


def files(n, first=0):
    """Yield (name, bytes) of the files of `n` samples."""
    for number in range(first, first + n):
        format = ["JPEG", "PNG"][number % 3 == 0]
        yield f"a/{number:04}.{'jpg' if format == 'JPEG' else 'png'}", encoded(pixels(30, 40, number), format)
        yield f"a/{number:04}.cls", str(number % 7).encode()
        yield f"a/{number:04}.json", b'{"number": %d}' % number


def shard(path, content, mode="w"):
    with tarfile.open(path, mode) as file:
        for name, data in content:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def plain(number, transform):
    """Return the image of a sample, read without its shard."""
    data = dict(files(1, number))
    image = next(value for name, value in data.items() if not name.endswith(("cls", "json")))
    return images.Bytes([(image, 0)], transform)[0][0]
