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


def programs():
    """Return (page, number) of every Python block; other libraries take long to import."""
    fast = (
        "README.md",
        *(
            f"docs/{page}.md"
            for page in (
                "quickstart",
                "datasets",
                "randomness",
                "workers",
                "adapters",
                "observing",
                "images",
                "recipes",
                "streams",
                "torch",
                "errors",
            )
        ),
    )
    slow = ("docs/integrations.md",)
    return [
        pytest.param(page, number, marks=[pytest.mark.slow] if page in slow else [])
        for page in (*fast, *slow)
        for number, _ in enumerate(blocks(page))
    ]


def imported(block):
    """The packages that a block imports."""
    nodes = list(ast.walk(ast.parse(block)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return {"torch" if name.startswith(NEED_TORCH) else name.partition(".")[0] for name in names}


def missing(block):
    """The packages that a block imports, and that are not installed."""
    return sorted(top for top in imported(block) if importlib.util.find_spec(top) is None)


def write_photographs(root):
    """Write class folders of JPEGs, for a program that reads some."""
    image = pytest.importorskip("PIL.Image")
    for number in range(64):
        folder = root / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (80, 60), (number, 0, 0)).save(folder / f"{number}.jpg")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "number"), programs())
def test_every_python_block_prints_what_its_comment_says(page, number, tmp_path):
    block = blocks(page)[number]
    if missing(block):
        pytest.skip(f"not installed: {', '.join(missing(block))}")
    if '"photos"' in block:
        write_photographs(tmp_path / "photos")
    script = tmp_path / "block.py"
    script.write_text(block)
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment = {**os.environ, **quiet}
    done = warm.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == " ".join(re.findall(r"print\(.*\)  # (.*)", block)).split()


def test_every_example_is_linked_from_a_page():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    targets = {
        page.parent.joinpath(target).resolve()
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    }
    unknown = sorted(path.name for path in (ROOT / "examples").iterdir() if path not in targets)
    assert not [name for name in unknown if name != "__pycache__"], "link these from a page of docs/"


def run_example(name, workers):
    command = [sys.executable, ROOT / "examples" / name, str(workers)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_example_prints_the_same_sums_for_any_number_of_workers():
    lines = run_example("augmented_images.py", 0)
    assert "20 batches" in lines
    assert run_example("augmented_images.py", 2) == run_example("augmented_images.py", 3) == lines


def test_the_example_with_a_table_prints_the_same_sums_for_any_number_of_workers():
    pytest.importorskip("pyarrow")
    pytest.importorskip("PIL")
    lines = run_example("parquet_images.py", 0)
    assert lines.count("(32, 64, 64, 3)") == 6
    assert run_example("parquet_images.py", 2) == lines


def test_the_queues_example_gets_every_frame():
    command = [sys.executable, ROOT / "examples" / "frames_by_queue.py"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out == "[50, 50] frames, in order, of each camera\n"


def test_the_example_of_a_stream_with_other_ranks_reads_each_line_once():
    command = [sys.executable, ROOT / "examples" / "other_ranks.py"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "50 50\n"


def test_the_training_example_reaches_the_same_accuracy_with_any_number_of_workers(tmp_path):
    pytest.importorskip("torch")
    write_photographs(tmp_path)

    def lines(workers):
        command = [sys.executable, ROOT / "examples" / "train_recipe.py", tmp_path, "--size", "32", "--workers"]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # several threads would add in another order
        done = subprocess.run([*command, str(workers)], capture_output=True, text=True, env=one_thread)
        assert done.returncode == 0, done.stderr
        return done.stdout

    alone = lines(0)
    assert re.fullmatch(r"epoch 0: accuracy [01]\.\d{3}\nepoch 1: accuracy [01]\.\d{3}\n", alone)
    assert lines(2) == alone


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]))
def test_links_between_the_documents_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"


def test_no_line_of_text_is_longer_than_120_characters():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    lines = [(page.name, line) for page in pages for line in page.read_text().splitlines()]
    assert [found for found in lines if len(found[1]) > 120 and not found[1].lstrip().startswith("|")] == []
