"""Wheels and the sdist: a bill of materials, the same bytes for the same files, and a reason for a missing Python."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.wheels import build, pythons, sbom

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "slipring-1.2.dist-info"
FILES = {"slipring/b.py": b"b = 2\n", "slipring/a.so": b"\0" * 1000, f"{FOLDER}/METADATA": b"Name: slipring\n"}
EPOCH = 1_700_000_000


def wheel(path, names, year):
    """Write a wheel with the files in this order and of this year."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*names, f"{FOLDER}/RECORD"):
            archive.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), FILES.get(name, b""))
    return path


def described():
    return {"bomFormat": "CycloneDX", "metadata": {"component": {"name": "slipring", "version": "1.2"}}}


def test_a_wheel_has_its_bill_of_materials_and_a_true_record(tmp_path):
    made = tmp_path / "made.whl"
    sbom.pack(wheel(tmp_path / "raw.whl", FILES, 2020), made, described(), EPOCH)
    with zipfile.ZipFile(made) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    bill = json.loads(contents[f"{FOLDER}/sboms/slipring.cdx.json"])
    assert bill["metadata"] == {**described()["metadata"], "timestamp": "2023-11-14T22:13:20Z"}
    assert list(contents)[-1] == f"{FOLDER}/RECORD" and FILES.items() <= contents.items()
    rows = {
        name: (digest, size) for name, digest, size in csv.reader(io.StringIO(contents[f"{FOLDER}/RECORD"].decode()))
    }
    assert rows.pop(f"{FOLDER}/RECORD") == ("", "")
    for name, (digest, size) in rows.items():
        sha = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={sha}", len(contents[name]))
    assert rows.keys() == contents.keys() - {f"{FOLDER}/RECORD"}


def test_the_same_files_give_the_same_wheel(tmp_path):
    made = [tmp_path / "one.whl", tmp_path / "two.whl"]
    sbom.pack(wheel(tmp_path / "a.whl", FILES, 2020), made[0], described(), EPOCH)
    sbom.pack(wheel(tmp_path / "b.whl", list(FILES)[::-1], 2024), made[1], described(), EPOCH)
    assert made[0].read_bytes() == made[1].read_bytes()
    sbom.pack(tmp_path / "a.whl", made[1], described(), EPOCH + 60)
    assert made[0].read_bytes() != made[1].read_bytes()


def test_the_same_files_give_the_same_sdist(tmp_path):
    archives = []
    for number, names in enumerate((sorted(FILES), sorted(FILES, reverse=True))):
        path = tmp_path / f"{number}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(f"slipring-1.2/{name}")
                member.size, member.mtime, member.uid, member.uname = len(FILES[name]), number, number, "me"
                member.mode = 0o664 if number else 0o600
                archive.addfile(member, io.BytesIO(FILES[name]))
        build.normalize_sdist(path, EPOCH)
        archives.append(path)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        members = archive.getmembers()
        assert {(member.mtime, member.uid, member.uname, member.mode) for member in members} == {(EPOCH, 0, "", 0o644)}
        assert archive.extractfile("slipring-1.2/slipring/b.py").read() == FILES["slipring/b.py"]


BUILD = """
import os, sys
from pathlib import Path
from tools.wheels import build
os.environ["SOURCE_DATE_EPOCH"] = str(build.epoch())
build.build_sdist(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_an_unpacked_sdist_gives_the_same_sdist(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    made, folder = [], ROOT
    for number in range(2):
        out = tmp_path / f"out{number}"
        subprocess.run([sys.executable, "-c", BUILD, out], cwd=folder, env=environment, check=True)
        (archive,) = out.iterdir()
        made.append(archive.read_bytes())
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path / f"unpacked{number}", filter="data")
        (folder,) = (tmp_path / f"unpacked{number}").iterdir()
    assert made[0] == made[1]


def test_c_files_are_kept_for_the_numpy_that_they_were_made_with_alone(tmp_path):
    made = tmp_path / "build" / "release" / "cython" / "module.c"
    for version, kept in (("2.5.5", False), ("2.5.5", True), ("2.4.6", False)):
        made.parent.mkdir(parents=True, exist_ok=True)
        made.touch()
        build.forget_c_of_another_numpy(tmp_path, version)
        assert made.exists() == kept


def test_packages_are_those_of_the_python_that_they_are_for(tmp_path, monkeypatch):
    monkeypatch.setattr(pythons, "WORK", tmp_path)
    given = (ROOT / "requirements-core.txt").read_text()
    for minor, marker in ((14, "<"), (15, ">=")):
        lines = pythons.Python(minor, Path(sys.executable), "aarch64").constraints().read_text().splitlines()
        numpy = re.search(rf'^(numpy==\S+); python_version {marker} "3.15"$', given, re.M)[1]
        assert [line for line in lines if line.startswith("numpy")] == [numpy]
        assert all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in lines)


def test_a_missing_python_comes_with_the_reason(tmp_path):
    (tmp_path / "bin").mkdir()
    os.symlink(shutil.which("mkdir"), tmp_path / "bin" / "mkdir")
    command = [shutil.which("sh"), ROOT / "tools" / "debian_python.sh", tmp_path / "python", "aarch64", "3.12"]
    done = subprocess.run(command, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "there is no CPython 3.12 for aarch64 here: there is no apt-get to unpack Debian's with\n"
