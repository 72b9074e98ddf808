"""Clients print nothing, write only below tmp_path, use no network, and leave nothing installed."""

import os

import pytest

QUIET = {
    "ACCELERATE_DISABLE_RICH": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    for name, value in {**QUIET, "HF_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    yield
    os.environ.clear()  # Lightning leaves addresses for later process groups there
    os.environ.update(before)


def pytest_collection_modifyitems(items):
    for item in items:
        if "clients" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # the clients' warnings are not ours
            item.add_marker(pytest.mark.slow)  # imports take seconds, and each fork copies the imported objects
