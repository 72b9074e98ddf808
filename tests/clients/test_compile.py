"""Compiled steps (torch.compile) that consume our batches."""

import shutil

import pytest

torch = pytest.importorskip("torch")

from slipring.torch import DataLoader  # noqa: E402
from tests.clients.points import Line, Points  # noqa: E402


def losses(step):
    torch.manual_seed(0)
    model = Line()
    with DataLoader(Points(), 4, num_workers=2) as loader:
        got = []
        for _ in range(2):
            for batch in loader:
                loss = step(model, batch)
                loss.backward()
                got.append(loss.detach())
        assert loader.stats().batches == len(got) == 12
    return got, model.layer.weight.grad


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_step_gives_the_same_losses_and_gradients_as_the_plain_step(backend, monkeypatch, tmp_path):
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("inductor needs g++")
    from torch._inductor import config

    def step(model, batch):
        return ((model.layer(batch["x"])[:, 0] - batch["y"]) ** 2).mean()

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    # Otherwise the pool of compilers stays, and so do headers outside of tmp_path.
    with config.patch(compile_threads=1, cpp_cache_precompile_headers=False):
        torch.testing.assert_close(losses(torch.compile(step, backend=backend, fullgraph=True)), losses(step))
    torch._dynamo.reset()
