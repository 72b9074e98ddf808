"""What the documents show, runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)


@pytest.mark.parametrize("number", range(len(blocks("docs/guide.md"))))
def test_every_python_block_of_the_guide_prints_what_its_comment_says(number, tmp_path):
    block = blocks("docs/guide.md")[number]
    script = tmp_path / "block.py"
    script.write_text(block)
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert out.split() == " ".join(re.findall(r"print\(.*\)  # (.*)", block)).split()


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


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(ROOT) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_between_the_documents_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"
