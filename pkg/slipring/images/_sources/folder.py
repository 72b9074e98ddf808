"""Class folders of image files, as torchvision's ImageFolder reads them."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from slipring._core.options.checks import file_path, flag, function, names
from slipring._files.storage import locate
from slipring.errors import shown
from slipring.images._sources.dataset import ImageDataset, suggests_options
from slipring.redaction import redacted
from slipring.strings import StringList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from slipring._files.storage import Storage
    from slipring.images._sources.dataset import ImageOptions
    from slipring.images._steps.outputs import SizedTransforms

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


@suggests_options
class Folder(ImageDataset):
    """A folder with one folder of images per class: (image, number of the class).

    The classes, their numbers and the order of the samples are those of torchvision's ``ImageFolder``.

    Parameters
    ----------
    root : path or URL
    transform, layout, dtype, mean, std, reducing_gap, exif, truncated, grey16, max_pixels, on_error
        As in `ImageDataset`.
    side, cache, what, target_transform
        Likewise.
    extensions : tuple of str
        File name extensions to include, in lower case.
    is_valid_file : callable, optional
        Used in place of `extensions`: returns whether a path is included.
    allow_empty : bool
        Include classes without a file. Behind a URL, only files are seen.
    storage : slipring.Storage, optional
        How URLs are read.

    Attributes
    ----------
    classes : list of str
    class_to_idx : dict
    samples : sequence of (path, number of the class)
    targets : numpy.ndarray of int64

    Raises
    ------
    FileNotFoundError
        There are no classes, or one of them has no file.

    Examples
    --------
    >>> from slipring import Loader, images
    >>> data = images.Folder("train/", images.RandomResizedCrop(224))
    >>> data.classes
    ['cat', 'dog']
    >>> with Loader(data, batch_size=2, num_workers=2) as loader:
    ...     for pixels, labels in loader:
    ...         print(pixels.shape, pixels.dtype, labels)
    (2, 224, 224, 3) uint8 [0 0]
    (2, 224, 224, 3) uint8 [1 1]
    """

    root: str
    targets: NDArray[np.int64]
    _remote = None

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: SizedTransforms = None,
        *,
        extensions: str | tuple[str, ...] = EXTENSIONS,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        storage: Storage | None = None,
        **options: Unpack[ImageOptions],
    ) -> None:
        super().__init__(transform, **options)
        self.root = file_path("root", root)
        (url,), self._remote = locate("root", [root], storage)
        flag("allow_empty", allow_empty)
        function("is_valid_file", is_valid_file)
        endings = tuple(
            names("extensions", [extensions] if isinstance(extensions, str) else extensions, "ending") or ()
        )
        if is_valid_file is None:

            def is_valid_file(path):
                return path.lower().endswith(endings)

        if self._remote is None:
            self.root = url if self.root.startswith("file://") else self.root
            found = _found_here(self.root)
        else:
            found, tags = _found_remote(url, self._remote)
            self._tags = tags if self.cache is not None or self._remote.disk_cache is not None else {}
        self.classes: list[str] = sorted(found)
        if not self.classes:
            raise FileNotFoundError(f"{redacted(self.root)} has no folders: there must be one per class")
        self.class_to_idx: dict[str, int] = {name: number for number, name in enumerate(self.classes)}
        paths, targets, empty = [], [], []
        for number, name in enumerate(self.classes):
            valid = [path for path in found[name] if is_valid_file(path)]
            paths += valid
            targets += [number] * len(valid)
            if not valid:
                empty.append(name)
        if empty and not allow_empty:
            raise FileNotFoundError(
                f"no image in the class folders {', '.join(empty)} of {redacted(self.root)}; files must end in "
                f"{', '.join(endings)}. allow_empty=True takes classes without any"
            )
        self._keep(paths, targets)

    @classmethod
    def of(
        cls,
        root: str | os.PathLike[str],
        classes: list[str],
        class_to_idx: dict[str, int],
        samples: Iterable[tuple[str, int]],
        transform: SizedTransforms = None,
        **options: Unpack[ImageOptions],
    ) -> Self:
        """Return a folder whose samples are given as a list: pairs of path and number of the class."""
        made = cls.__new__(cls)
        ImageDataset.__init__(made, transform, **options)
        made.root, made.classes, made.class_to_idx = os.fspath(root), classes, class_to_idx
        made._keep([path for path, _ in samples], [target for _, target in samples])
        return made

    def _keep(self, paths, targets):
        self._paths = StringList(paths)  # workers that read it do not copy its pages
        self.targets = np.array(targets, np.int64)
        self._targets_apart = type(self).read is Folder.read
        self._complete()

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(path, number of the class) of each image, as a list."""
        return list(zip(self._paths, self.targets.tolist()))

    def __len__(self) -> int:
        return len(self.targets)

    def read(self, index: int) -> tuple[bytes, Any]:
        return self._data(index), self._target(index)

    def _data(self, index):
        path = self._paths[index]
        return read_file(path) if self._remote is None else self._remote._read_all(path, self._tags.get(path, ""))

    def _target(self, index):
        return int(self.targets[index])

    def fingerprint(self) -> str:
        root = os.path.abspath(self.root) if self._remote is None else self.root
        digest = hashlib.blake2b(root.encode("utf-8", "surrogatepass"))
        for path in self._paths:
            digest.update(f"{path}\0{self._stamp(path)}\0".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def _stamp(self, path):
        """Return a text that changes when a file does, as far as this machine or the listing of a URL shows."""
        if self._remote is not None:
            return self._tags.get(path, "")
        try:
            status = os.stat(path)
        except OSError:  # reading it raises the error
            return ""
        return f"{status.st_size} {status.st_mtime_ns}"

    def name(self, index: int) -> str:
        return self._paths[index]

    def __repr__(self) -> str:
        return f"Folder({shown(self.root)}, {self.transform}): {len(self)} images in {len(self.classes)} classes"


def _found_here(root):
    """Return {class: paths of all its files, in torchvision's order}."""
    found = {}
    for name in sorted(entry.name for entry in os.scandir(root) if entry.is_dir()):
        walked = sorted(os.walk(os.path.join(root, name), followlinks=True))
        found[name] = [os.path.join(folder, file) for folder, _, files in walked for file in sorted(files)]
    return found


def _found_remote(root, storage):
    """Return the same for a URL, and {path: a tag that changes with the file}, if the server sends tags."""
    root = root if root.endswith("://") else root.rstrip("/") + "/"
    found, tags = {}, {}
    # HTTP quotes names in URLs; numbers and order must follow the unquoted names.
    name_of = unquote if root.startswith(("http://", "https://")) else str
    for path, tag in sorted(storage._find(root), key=lambda one: name_of(one[0]).rpartition("/")[::2]):
        name, slash, _ = path.partition("/")
        if slash:
            found.setdefault(name_of(name), []).append(root + path)
            if tag:
                tags[root + path] = tag
    return found, tags


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return a file's bytes, without a Python file object: three system calls."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_at(descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def read_at(descriptor, at, size):
    """Return `size` bytes of an open file, from `at` on; fewer where the file ends."""
    data = os.pread(descriptor, size, at)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), at + len(data))):
        data += more
    return data
