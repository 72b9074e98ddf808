"""Compiled steps (torch.compile) that consume our batches."""

import shutil

import pytest

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402
from tests.clients.points import Line, Points  # noqa: E402


def step(model, batch):
    return ((model.layer(batch["x"])[:, 0] - batch["y"]) ** 2).mean()


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def losses(one_step):
    torch.manual_seed(0)
    model, got = Line(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DataLoader(Points(), 4, num_workers=2) as loader:
        for _ in range(2):
            for batch in loader:
                loss = one_step(model, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                got.append(loss.item())
        assert loader.stats().batches == len(got) == 12
    return got


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_step_gives_the_same_losses_as_the_plain_step(backend, monkeypatch):
    if backend == "inductor":
        if not shutil.which("g++"):
            pytest.skip("inductor needs g++")
        from torch._inductor import config

        monkeypatch.setattr(config, "compile_threads", 1)  # otherwise the pool of compilers stays
        monkeypatch.setattr(config, "cpp_cache_precompile_headers", False)  # these would stay outside of tmp_path
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    assert losses(compiled) == pytest.approx(losses(step), rel=1e-4)
