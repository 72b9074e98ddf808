"""The bill of materials of a wheel (SBOM, PEP 770), and wheels with the same bytes for the same files."""

import base64
import csv
import datetime
import hashlib
import importlib.metadata
import io
import json
import subprocess
import sys
import time as clock
import uuid
import zipfile

# What is compiled into the modules, and the tools that make the wheel.
COMPILED_IN = {"cython": "Apache-2.0", "numpy": "BSD-3-Clause"}
TOOLS = ("auditwheel", "setuptools", "ziglang")


def describe(wheel, python):
    """Return the CycloneDX document of a wheel that was built in the environment of `python`.

    The wheel contains the project's own files, and in the compiled modules Cython's runtime functions and the inline
    functions of numpy's headers. No library is copied into it.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "list", "--format", "json", "--disable-pip-version-check"],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    built_with = {entry["name"].lower(): entry["version"] for entry in json.loads(listed.stdout)}
    version = wheel.name.split("-")[1]
    parts = [_component(name, built_with[name], licence) for name, licence in COMPILED_IN.items()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'pkg:pypi/slipring@{version}#{wheel.name}')}",
        "version": 1,
        "metadata": {
            "component": _component("slipring", version, "Apache-2.0"),
            "tools": {"components": [_component(name, importlib.metadata.version(name)) for name in TOOLS]},
        },
        "components": parts,
        "dependencies": [
            {"ref": f"pkg:pypi/slipring@{version}", "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"], "dependsOn": []} for part in parts),
        ],
    }


def _component(name, version, licence=None):
    address = f"pkg:pypi/{name}@{version}"
    described = {"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address}
    return described | ({"licenses": [{"license": {"id": licence}}]} if licence else {})


def pack(wheel, target, document, time):
    """Write `wheel` to `target` with `document` as its SBOM; all files have one time, the metadata is last."""
    with zipfile.ZipFile(wheel) as archive:
        files = {entry.filename: (entry, archive.read(entry)) for entry in archive.infolist() if not entry.is_dir()}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    folder = record.removesuffix("/RECORD")
    stamp = datetime.datetime.fromtimestamp(time, datetime.UTC)
    document["metadata"]["timestamp"] = stamp.strftime("%Y-%m-%dT%H:%M:%SZ")
    bill = json.dumps(document, indent=1).encode() + b"\n"
    files[f"{folder}/sboms/slipring.cdx.json"] = files[record][0], bill
    del files[record]
    names = sorted(files, key=lambda name: (name.startswith(folder), name))
    rows = [(name, f"sha256={_digest(files[name][1])}", len(files[name][1])) for name in names]
    listed = io.StringIO()
    csv.writer(listed, lineterminator="\n").writerows([*rows, (record, "", "")])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in names:
            _write(archive, name, files[name][1], files[name][0].external_attr, time)
        _write(archive, record, listed.getvalue().encode(), 0o100644 << 16, time)


def _digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _write(archive, name, data, attributes, time):
    entry = zipfile.ZipInfo(name, clock.gmtime(max(time, 315532800))[:6])  # a zip's times begin in 1980
    entry.external_attr, entry.compress_type = attributes, zipfile.ZIP_DEFLATED
    archive.writestr(entry, data, compresslevel=9)
