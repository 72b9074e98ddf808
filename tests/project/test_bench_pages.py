"""The benchmark pages, and the results that their figures come from."""

import json
import re

import pytest

from bench import pages, record

RESULTS = sorted(record.RECORDED.glob("*.json"))
MARKED = "text\n<!-- table: starts | | | ^1, -->\n\nmore text\n"


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: str(page.relative_to(pages.DOCS)))
def test_a_page_has_the_figures_of_the_results(page):
    text = page.read_text()
    assert pages.regenerated(text) == text, "python -m bench.pages writes it"
    assert pages.BLOCK.search(text)


def test_a_figure_that_was_changed_on_a_page_is_noticed():
    text = pages.regenerated(MARKED)
    assert pages.regenerated(text) == text
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


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_has_the_form_that_commands_write_and_a_page_that_shows_it(path):
    result = record.load(path.stem)
    assert record.text_of(result) == path.read_text()
    about = result["machine"]
    assert re.match(r"20\d\d-\d\d-\d\d", about["date"]) and about["command"].startswith("python -m ")
    assert about["cpu"] and about["cores"] > 0 and "commit" in about
    for table in result["tables"].values():
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
        for cell in (cell for row in table["rows"] for cell in row if isinstance(cell, list)):
            middle, low, high = cell
            assert low - abs(low) / 100 <= middle <= high + abs(high) / 100  # they are rounded
    shown = "\n".join(page.read_text() for page in pages.PAGES)
    assert re.search(rf"<!-- table: ([\w-]+ \+ )*{path.stem}( \+ [\w-]+)*[ |]", shown)


def test_a_command_writes_its_tables_in_this_form(tmp_path, capsys):
    table = record.Table("workers", "loader", "rate", "how", labels=2)
    table.add(16, "slipring", record.spread([3.0, 1.00004, 2.0]), None)
    path = record.finish(str(tmp_path / "made.json"), {"date": "2026-01-01", "cpu": "x"}, {"rates": table}, "quiet")
    made = json.loads(path.read_text())
    assert made["tables"]["rates"]["rows"] == [[16, "slipring", [2, 1, 3], None]] and made["note"] == "quiet"
    assert record.text_of(made) == path.read_text()
    assert "| 16 | slipring | 2 (1 – 3) | – |" in capsys.readouterr().out
    with pytest.raises(ValueError, match="1 cells"):
        table.add(1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.08, "0.08"),
        (12.34, "12.3"),
        (1265.4, "1,265"),
        (-12.9, "−12.9"),
        ([2, 1, 3], "2 (1 – 3)"),
        ([2, 2, 2], "2"),
    ],
)
def test_cells_have_three_significant_digits(value, text):
    assert record.cell(value) == text


def test_a_table_may_join_results_and_select_columns_and_rows(monkeypatch):
    made = {
        name: {"tables": {"t": {"columns": ["loader", "rate", "cpu"], "labels": 1, "rows": rows}}}
        for name, rows in (("one", [["a", 1, 2], ["b", 3, 4]]), ("two", [["c", 5, 6]]))
    }
    made["one"]["tables"]["u"] = {"columns": ["loader", "rate", "cpu"], "labels": 1, "rows": [["b", 7, 8]]}
    monkeypatch.setattr(pages, "read", made.__getitem__)
    assert pages.merged("one + two | t | cpu", "#runs")[2:] == ["| a | 2 |", "| b | 4 |", "| c | 6 |"]
    lines = pages.merged("one | t; u | rate | ^b", "#runs")
    assert lines == ["| loader ([one](#runs)) | t | u |", "|---|---:|---:|", "| b | 3 | 7 |"]


@pytest.mark.leaks_ok("matplotlib keeps files of fonts open")
def test_the_chart_is_drawn_from_the_results(tmp_path):
    pytest.importorskip("matplotlib")
    pages.draw(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_each_result_has_the_command_that_measures_it_again():
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
