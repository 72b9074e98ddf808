"""Clients are quiet, write only below tmp_path, ask nothing of any network, and leave nothing installed."""

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
    os.environ.clear()  # Lightning tells later groups of processes where to meet
    os.environ.update(before)


def pytest_collection_modifyitems(items):
    for item in items:
        if "clients" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # what clients warn of is their business
            item.add_marker(pytest.mark.slow)  # imports of seconds, and each fork copies what they made
