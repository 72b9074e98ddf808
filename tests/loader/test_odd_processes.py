"""Processes in odd states: without a working directory, as another user, and with names that are not UTF-8."""

import logging
import os

import numpy as np
import pytest

from slipring import Loader, Workers, images
from tests.support.processes import in_child


class Rows:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.full(3, index)


def loaded(method):
    with Loader(Rows(), 2, num_workers=1, workers=Workers(start_method=method)) as loader:
        return [batch.tolist() for batch in loader]


def refusal(method):
    """Return the type and the text of the error that a loader raises, and the batches if there is none."""
    try:
        return "batches", loaded(method)
    except OSError as error:
        return type(error).__name__, str(error)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_deleted_working_directory_is_named_where_a_worker_would_begin_in_it(method, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()

    def without_folder():
        os.chdir(folder)
        folder.rmdir()
        return refusal(method)

    kind, text = in_child(without_folder)
    if method == "fork":
        assert kind == "batches"
    else:
        assert kind == "FileNotFoundError"
        assert "the working directory has been deleted" in text and "os.chdir" in text and method in text


@pytest.mark.timeout(120)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_fork_server_of_another_user_is_named():
    def as_another():
        loaded("forkserver")  # this starts the server, and imports what another user may not be able to read
        os.setgid(65534)
        os.setuid(65534)
        return refusal("forkserver")

    kind, text = in_child(as_another)
    assert kind == "PermissionError" and "user 65534" in text and "os.setuid" in text


def test_a_log_record_with_a_name_that_is_not_utf8_can_be_written_as_strict_utf8(tmp_path, monkeypatch):
    folder = tmp_path / "train" / "cat"
    folder.mkdir(parents=True)
    with open(os.path.join(os.fsencode(folder), b"bad\xff.png"), "wb") as file:
        file.write(b"no image")
    (folder / "\u00fc.png").write_bytes(images_bytes())
    log = tmp_path / "log.txt"
    handler = logging.FileHandler(log, encoding="utf-8", errors="strict")
    monkeypatch.setattr(handler, "handleError", lambda record: pytest.fail("the record was lost"))
    logger = logging.getLogger("slipring")
    logger.addHandler(handler)
    try:
        data = images.Folder(tmp_path / "train", images.Resize((4, 4)), on_error="skip")
        assert [data[n][1] for n in range(2)] == [0, 0]
    finally:
        logger.removeHandler(handler)
        handler.close()
    text = log.read_text(encoding="utf-8")
    assert "skipped" in text and "bad\\udcff.png" in text


def images_bytes():
    from tests.support.pictures import encoded, pixels

    return encoded(pixels(8, 8), "PNG")
