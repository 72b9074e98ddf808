"""The benchmark pages, and the results that their figures come from."""

import re

from bench import pages, record

RESULTS = sorted(record.RECORDED.glob("*.json"))
MARKED = "text\n<!-- table: starts | | | ^1, -->\n\nmore text\n"


def test_a_page_has_the_figures_of_the_results_and_a_changed_one_is_noticed():
    for page in pages.PAGES:
        assert pages.BLOCK.search(page.read_text())
        assert pages.regenerated(page.read_text()) == page.read_text(), f"python -m bench.pages writes {page}"
    text = pages.regenerated(MARKED)
    wrong = re.sub(r"\| 1 \| torch \| [\d.]+", "| 1 | torch | 0.001", text)
    assert wrong != text and pages.regenerated(wrong) == text


def test_the_first_figures_are_the_cases_in_which_slipring_loses():
    first = pages.BLOCK.search((pages.DOCS / "benchmarks.md").read_text())
    assert first[2] == "losses"
    rows = [row for row in first[0].splitlines() if row.startswith("|")][2:]
    speeds = [float(re.search(r"\| ([\d.]+) × \|", row)[1]) for row in rows]
    assert speeds == sorted(speeds) and speeds[0] < 1


def test_each_missed_target_is_among_the_losses():
    missed = {
        (path.stem, ", ".join(row[:2]))
        for path in RESULTS
        for row in record.load(path.stem)["tables"].get("targets", {"rows": []})["rows"]
        if row[-1] == "no"
    }
    assert missed and missed <= {(loss.result, loss.ours) for loss in pages.LOSSES}


def test_each_result_has_the_form_that_commands_write_a_page_that_shows_it_and_a_command():
    shown = "\n".join(page.read_text() for page in pages.PAGES)
    for path in RESULTS:
        result = record.load(path.stem)
        assert record.text_of(result) == path.read_text()
        about = result["machine"]
        assert re.match(r"20\d\d-\d\d-\d\d", about["date"]) and about["command"].startswith("python -m ")
        assert about["cpu"] and about["cores"] > 0 and "commit" in about
        for table in result["tables"].values():
            assert all(len(row) == len(table["columns"]) for row in table["rows"])
            for middle, low, high in (cell for row in table["rows"] for cell in row if isinstance(cell, list)):
                assert low - abs(low) / 100 <= middle <= high + abs(high) / 100  # they are rounded
        assert re.search(rf"<!-- table: ([\w-]+ \+ )*{path.stem}( \+ [\w-]+)*[ |]", shown), path
    found = pages.commands()
    assert len(found) == len(RESULTS)
    assert all(" --record " in command for command in found)


def test_the_readme_has_ratios_of_the_results():
    arrays, crops = (pages.read(name)["tables"] for name in ("new-arrays", "crops"))
    torch = [pages.value(arrays[key], "slipring", "× torch") for key in ("b2", "h")]
    ours, threads = (
        max(pages.value(arrays["b2"], name, pages.RATE) for name in names)
        for names in (("slipring",), ("SPDL, threads", "torchdata nodes, threads", "Grain, threads"))
    )
    recipes = [
        pages.value(result["tables"]["ratio"], row[0], "slipring.images")
        for result in pages.joined(pages.RECIPES)
        for row in result["tables"]["ratio"]["rows"]
    ]
    text = " ".join((pages.ROOT / "README.md").read_text().split())
    for said in (
        f"{torch[0]:.0f} × torch's loader and {ours / threads:.0f} × the fastest loader with threads",
        f"{torch[1]:.1f} × torch: [how",
        f"{pages.value(crops['f'], 'slipring.images', '× torch'):.1f} × torch with Pillow",
        f"{min(recipes):.1f} to {max(recipes):.0f} × the images per CPU second",
    ):
        assert said in text
