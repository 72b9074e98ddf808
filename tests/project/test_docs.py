"""What the documents show, runs."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm

ROOT = Path(__file__).resolve().parents[2]
NEED_TORCH = ("slipring.torch", "slipring.adapters.di_engine", "slipring.adapters.torchdata")


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)


FAST = (
    "quickstart datasets randomness workers broadcast adapters observing images recipes clips streams tokens torch "
    "errors"
)
SLOW = "docs/integrations.md"  # other libraries take long to import


def programs():
    """Return (page, number) of every Python block."""
    pages = ("README.md", *(f"docs/{name}.md" for name in FAST.split()), SLOW)
    return [
        pytest.param(page, number, marks=[pytest.mark.slow] if page == SLOW else [])
        for page in pages
        for number, _ in enumerate(blocks(page))
    ]


def missing(block):
    """The packages that a block imports, and that are not installed."""
    nodes = list(ast.walk(ast.parse(block)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    packages = {"torch" if name.startswith(NEED_TORCH) else name.partition(".")[0] for name in names}
    return sorted(name for name in packages if importlib.util.find_spec(name) is None)


def write_photographs(root):
    """Write class folders of JPEGs, for a program that reads some."""
    image = pytest.importorskip("PIL.Image")
    for number in range(64):
        folder = root / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (80, 60), (number, 0, 0)).save(folder / f"{number}.jpg")


def write_videos(root):
    """Write short videos, for a program that reads some."""
    pytest.importorskip("av")
    from tests.support.videos import write, write_with_sound

    root.mkdir()
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        write(root / name, frames=60)
    write_with_sound(root / "sound.mp4", rate=16_000)


def write_robot(root):
    """Write a robot dataset, for a program that reads one."""
    pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    from tests.support.robots import write_dataset

    write_dataset(root)


@pytest.mark.parametrize(("page", "number"), programs())
def test_every_python_block_prints_what_its_comment_says(page, number, tmp_path):
    block = blocks(page)[number]
    if missing(block):
        pytest.skip(f"not installed: {', '.join(missing(block))}")
    if '"photos"' in block:
        write_photographs(tmp_path / "photos")
    if '"videos/' in block:
        write_videos(tmp_path / "videos")
    if '"robot"' in block:
        write_robot(tmp_path / "robot")
    script = tmp_path / "block.py"
    script.write_text(block)
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment = {**os.environ, **quiet}
    done = warm.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == " ".join(re.findall(r"print\(.*\)  # (.*)", block)).split()


TARGET = re.compile(r"\]\(([^)#:]+)\)")


def test_links_lead_somewhere_and_every_example_has_one():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    links = {page: [(page.parent / target).resolve() for target in TARGET.findall(page.read_text())] for page in pages}
    broken = [f"{page.name}: {target}" for page in pages for target in links[page] if not target.exists()]
    assert not broken, f"these links lead nowhere: {', '.join(broken)}"
    linked = {target for targets in links.values() for target in targets}
    unknown = sorted(path.name for path in (ROOT / "examples").iterdir() if path not in linked)
    assert not [name for name in unknown if name != "__pycache__"], "link these from a page of docs/"


def example(name, *arguments):
    """Return the output of an example. Several threads of torch would add in another order."""
    command = [sys.executable, ROOT / "examples" / name, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("frames_by_queue.py", "[50, 50] frames, in order, of each camera\n"),
        ("other_ranks.py", "50 50\n"),
        (
            "message_queue.py",
            "".join(f"[(0, 'execute_model', {n}), (1, 'execute_model', {n})]\n" for n in (10, 11, 12)),
        ),
    ],
)
def test_examples_without_arguments_print_what_is_promised(name, output):
    assert example(name) == output


def test_tensor_parallel_ranks_share_a_stream():
    pytest.importorskip("torch.distributed")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        ROOT / "examples/shared_stream.py",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([*command], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    total = 2 * sum(range(64))
    assert done.stdout == f"ranks of a group got the same: True\nsum of all samples: {total}\n"


@pytest.mark.parametrize(
    ("name", "needs", "marker", "times"),
    [
        ("augmented_images.py", (), "20 batches", 2),
        ("parquet_images.py", ("pyarrow", "PIL"), "(32, 64, 64, 3)", 6),
        ("train_recipe.py", ("torch",), ": accuracy ", 2),
    ],
)
def test_the_example_prints_the_same_for_any_number_of_workers(tmp_path, name, needs, marker, times):
    for module in needs:
        pytest.importorskip(module)
    options = ()
    if name == "train_recipe.py":
        write_photographs(tmp_path)
        options = (tmp_path, "--size", 32, "--workers")
    alone = example(name, *options, 0)
    assert alone.count(marker) == times
    assert example(name, *options, 2) == alone


def test_a_robot_policy_learns_the_same_for_any_number_of_workers():
    for module in ("torch", "av", "pyarrow"):
        pytest.importorskip(module)
    alone = example("robot_policy.py", "--workers", 0)
    losses = [float(loss) for loss in re.findall(r"loss (.*)", alone)]
    assert len(losses) == 5 and losses[-1] < 0.5 * losses[0]
    assert example("robot_policy.py", "--workers", 2) == alone


def test_packed_training_has_the_loss_per_token_of_padded_training():
    pytest.importorskip("torch")
    packed, padded, alone = (example("train_packed.py", *options) for options in ((), ("--padded",), ("--workers", 0)))
    losses, same = (re.findall(r"loss per token (.*)", output) for output in (packed, padded))
    assert len(losses) == 20 and float(losses[-1]) < 0.6 * float(losses[0])
    assert [float(loss) for loss in losses] == pytest.approx([float(loss) for loss in same], rel=1e-3)
    assert packed == alone
