"""What the documents show, runs."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import warm

ROOT = Path(__file__).resolve().parents[2]


NEED_TORCH = ("slipring.torch", "slipring.adapters.di_engine", "slipring.adapters.torchdata")


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)


def programs():
    """(page, number) of every python block that is a program of its own; other libraries take long to import."""
    fast = (
        "README.md",
        *(
            f"docs/{page}.md"
            for page in (
                "guide",
                "elastic",
                "tuning",
                "adapters",
                "images",
                "monitoring",
                "streams",
                "slow-reads",
            )
        ),
    )
    found = [(page, number) for page in fast for number in range(len(blocks(page)))]
    clusters = [pytest.mark.slow, pytest.mark.alone]  # Ray wants all processors to start in time
    return found + [
        pytest.param(page, number, marks=clusters if "import ray" in block else pytest.mark.slow)
        for page in ("docs/integrations.md", "docs/ray.md")
        for number, block in enumerate(blocks(page))
    ]


def missing(block):
    """The packages that a block imports, and that are not installed."""
    nodes = list(ast.walk(ast.parse(block)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    tops = {"torch" if name.startswith(NEED_TORCH) else name.partition(".")[0] for name in names}
    return sorted(top for top in tops if importlib.util.find_spec(top) is None)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "number"), programs())
def test_every_python_block_prints_what_its_comment_says(page, number, tmp_path):
    block = blocks(page)[number]
    if missing(block):
        pytest.skip(f"not installed: {', '.join(missing(block))}")
    script = tmp_path / "block.py"
    script.write_text(block)
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # Ray's sockets lie there: 107 characters at most
        done = warm.run(
            [sys.executable, script],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **quiet, "RAY_TMPDIR": short},
        )
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


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]))
def test_links_between_the_documents_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"


def test_no_line_of_text_is_longer_than_120_characters():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    lines = [(page.name, line) for page in pages for line in page.read_text().splitlines()]
    assert [found for found in lines if len(found[1]) > 120 and not found[1].lstrip().startswith("|")] == []
