"""What do whole training recipes cost? ``python -m bench.recipes``.

Purpose
    How many images per second of CPU time does each candidate make from a folder of JPEGs, with the recipes that people
    train with: crop, augmentations, normalisation, MixUp or CutMix; detection and segmentation with boxes and masks?
    How far is the result from torchvision's?
Data
    The photographs of workload (f), or the user's class folders (``--data``), in random order, 224 × 224, 64 per batch.
    In "kept", decoded images lie in memory: slipring's ``cache=`` after two epochs, and in torch's loader
    a list of images that the workers inherit. Recipes with boxes and masks have 168 photographs of COCO's sizes with 1
    to 20 random polygons each, which ``bench/annotated_photos.py`` makes; their batches and sizes differ, see
    ``bench/baselines/recipes``. Masks lie in memory as bits, and all candidates unpack them.
Machine, command, result
    Printed. Each candidate runs each recipe in its own process, and they take turns in each round; ratios are formed
    within a round. CPU time is that of the process and its workers, by the kernel's count, while batches are consumed.
    "levels" are the mean and the standard deviation of all pixel values of the first 256 images of each round, which
    are the same images for all candidates. The error of a crop is slipring's difference from torchvision's on PIL, for
    the same 200 images and boxes, once for each interpolation; tests compare the other operations. For recipes with
    boxes and masks it is the difference of all parts after a fixed resize, crop and flip of 20 samples. torchvision
    resizes masks, which are tensors, with another rule than Pillow's for the nearest pixel, so that borders differ.
Bias
    The consumer reads one element of each array, and no training competes for the caches. The files stay in the page
    cache. torch's loaders have persistent workers. uint8 batches are channels last, except those of torchvision on
    tensors and of timm: each candidate gives them in the way that costs it least. Pillow decodes for all of torch's
    candidates but Albumentations. If a candidate has no transform of that name, it uses the substitute that its file
    in ``bench/baselines/recipes`` names. torchvision has no mosaic: its candidate pastes images with Pillow.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bench import annotated_photos, apart, cpu, parts
from bench.annotated_photos import AnnotatedPhotos
from bench.baselines._torch import endless
from bench.baselines.recipes import BATCH, CANDIDATES, CLASSES, RECIPES, SIDE, VIEWS, Recipe
from bench.collate import as_array, leaves
from bench.levels import levels
from bench.machine import describe
from bench.photos import ensure, image_files
from bench.record import Table, cell, finish, option, spread
from bench.workloads.epochs import Pictures

CHECKED = 4  # batches whose form and levels are compared, before the clock starts
COMPARED = 200  # crops that are compared with torchvision's
NOT_EXPRESSED = "no such recipe"
QUANTITIES = {
    "ratio": "ratio",
    "images per CPU second": "per_cpu_s",
    "images/s": "per_s",
    "mean": "mean",
    "deviation": "deviation",
}

Row = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.recipes", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--only", action="append", choices=tuple(RECIPES), metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each measurement (5)")
    parser.add_argument("--data", metavar="DIR", help="class folders of your own JPEGs")
    option(parser)
    parser.add_argument("--measure", nargs=3, metavar=("RECIPE", "CANDIDATE", "ROUND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        recipe, candidate, seed = options.measure
        print(json.dumps(answer(RECIPES[recipe], candidate, int(seed), options)))
        return
    if options.data is None:
        ensure()
        annotated_photos.ensure()
    about = describe(CANDIDATES.values())
    groups: list[list[Row]] = []
    told = []
    for line in table(measured(groups, options)):
        print(line, flush=True)
        told.append(line)
    note = f"{options.rounds} rounds of {options.seconds:g} s, {options.workers} workers"
    finish(options.record, about, by_candidate(groups), "; ".join([note, *told[told.index("") + 1 :]]))


def measured(groups: list[list[Row]], options: argparse.Namespace) -> Iterator[list[Row]]:
    """Yield the rows of each recipe, and append them to `groups`."""
    for key in options.only or RECIPES:
        groups.append(compared(RECIPES[key], options))
        yield groups[-1]


def by_candidate(groups: Iterable[list[Row]]) -> dict[str, Table]:
    """Return a table of each quantity, with a row for each recipe and a column for each candidate."""
    labels = [candidate.label for candidate in CANDIDATES.values()]
    tables = {name: Table("recipe", *labels, quiet=True) for name in QUANTITIES}
    for rows in groups:
        for key, made in zip(QUANTITIES.values(), tables.values(), strict=True):
            made.add(rows[0]["recipe"], *(spread(row[key]) if key in row else None for row in rows))
    return tables


def compared(recipe: Recipe, options: argparse.Namespace) -> list[Row]:
    """Let the candidates take turns; return a row for each."""
    keys = tuple(CANDIDATES)
    answers: dict[str, list[Row]] = {key: [] for key in keys}
    for number in range(options.rounds):
        first = number % len(keys)
        for key in keys[first:] + keys[:first]:
            if not any("missing" in found for found in answers[key]):
                answers[key].append(measured_apart(recipe, key, number, options))
    reference = answers[recipe.reference]
    return [summary(recipe, key, answers[key], reference) for key in keys]


def measured_apart(recipe: Recipe, candidate: str, number: int, options: argparse.Namespace) -> Row:
    """Measure in a new process; its failure becomes the answer."""
    command = [sys.executable, "-m", "bench.recipes", "--workers", str(options.workers)]
    command += ["--seconds", str(options.seconds), *(("--data", options.data) if options.data else ())]
    return apart.answer([*command, "--measure", recipe.key, candidate, str(number)])


def answer(recipe: Recipe, candidate: str, seed: int, options: argparse.Namespace) -> Row:
    """Measure one candidate in this process, or return why it cannot be measured."""
    baseline = CANDIDATES[candidate]
    if missing := baseline.missing():
        return {"missing": missing}
    name = f"bench.baselines.{baseline.module}" + ("_parts" if recipe.parts else "")
    module = importlib.import_module(name) if importlib.util.find_spec(name) else None
    if module is None or recipe.key not in module.STEPS:
        return {"missing": NOT_EXPRESSED}
    pictures: Any = AnnotatedPhotos(options.data) if recipe.parts else Pictures(image_files(options.data))
    seed_all(seed)
    batches = endless(module.loader(recipe, pictures, options.workers))
    found = check(recipe, [next(batches) for _ in range(CHECKED)])
    epochs = -(-2 * pictures.distinct // recipe.batch) if recipe.kept else 0
    for _ in range(epochs + 4 * options.workers):
        next(batches)
    found |= timed(batches, options.seconds, options.workers, recipe.batch)
    if recipe.parts and seed == 0 and hasattr(module, "parts_errors"):
        found["errors"] = module.parts_errors(recipe, pictures, COMPARED // 10)
    if recipe.compares_crops and seed == 0 and hasattr(module, "crop_error"):
        found["error"] = module.crop_error(recipe, pictures, COMPARED)
    return found


def seed_all(seed: int) -> None:
    """Seed what draws the order of the images and, in torch's workers, the transforms."""
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def check(recipe: Recipe, batches: Sequence[Any]) -> Row:
    """Check the form of batches; return the mean and the standard deviation of their levels."""
    if recipe.parts:
        return parts.check(recipe, batches)
    values = []
    for images, labels in batches:
        arrays = [as_array(leaf) for leaf in leaves(images)]
        if wrong := [array for array in arrays if not has_form(recipe, array)]:
            raise ValueError(f"{recipe.key}: a batch of {wrong[0].dtype}{wrong[0].shape}")
        targets = as_array(labels)
        if targets.shape != ((BATCH, CLASSES) if recipe.mixed else (BATCH,)):
            raise ValueError(f"{recipe.key}: labels of shape {targets.shape}")
        values.append(arrays)
    return levels(values)


def touch(part: Any) -> None:
    """Read one element of each array of a batch."""
    if isinstance(part, (tuple, list)):
        for item in part:
            touch(item)
    elif isinstance(part, dict):
        touch(list(part.values()))
    elif (array := as_array(part)).size:
        array.item(0)


def has_form(recipe: Recipe, array: np.ndarray) -> bool:
    """Return whether an array is one of the images of a batch, as the recipe wants them."""
    if recipe.views:
        kinds = {shape for count, side, _ in VIEWS for shape in ((count, side, side, 3), (side, side, 3))}
        return array.shape[0] == BATCH and array.shape[1:] in kinds and array.dtype == np.uint8
    if recipe.normalised:
        return array.shape == (BATCH, 3, SIDE, SIDE) and array.dtype == np.float32
    return array.shape in ((BATCH, 3, SIDE, SIDE), (BATCH, SIDE, SIDE, 3)) and array.dtype == np.uint8


def timed(batches: Iterator[Any], seconds: float, multiple: int, batch: int = BATCH) -> Row:
    """Consume batches for some time, a multiple of the number of workers; return rates in images per second."""
    clock = time.perf_counter
    used, begin, count = cpu.of_job(os.getpid()), clock(), 0
    while count % multiple or clock() - begin < seconds:
        touch(next(batches))
        count += 1
    elapsed, used = clock() - begin, cpu.of_job(os.getpid()) - used
    return {"per_cpu_s": count * batch / used, "per_s": count * batch / elapsed}


def summary(recipe: Recipe, key: str, answers: list[Row], reference: list[Row]) -> Row:
    """Return the row of one candidate."""
    row: Row = {"recipe": recipe.key, "title": recipe.title, "candidate": key, "reference": recipe.reference}
    if missing := next((found["missing"] for found in answers if "missing" in found), None):
        return row | {"missing": missing}
    for name in ("per_cpu_s", "per_s", "mean", "deviation"):
        row[name] = [found[name] for found in answers]
    if all("per_cpu_s" in found for found in reference):
        row["ratio"] = [found["per_cpu_s"] / other["per_cpu_s"] for found, other in zip(answers, reference)]
    for name in ("error", "errors"):
        if errors := [found[name] for found in answers if name in found]:
            row[name] = errors[0]
    return row


def table(groups: Iterable[list[Row]]) -> Iterator[str]:
    """Yield the lines of the table, as soon as the rows of each recipe are known, and of the notes that follow it."""
    yield "| recipe | candidate | images per CPU second | images/s | ratio | levels: mean, deviation |"
    yield "|---|---|---:|---:|---:|---:|"
    notes: dict[str, None] = {}
    for rows in groups:
        recipe = RECIPES[rows[0]["recipe"]]
        notes[f"{recipe.key}: {recipe.title}; ratio to {CANDIDATES[recipe.reference].label}"] = None
        for row in rows:
            label = CANDIDATES[row["candidate"]].label
            yield f"| {recipe.key} | {label} | {cells(row)} |"
            if row.get("missing") == NOT_EXPRESSED:
                notes[f"{recipe.key}: {label} has no such recipe"] = None
            elif "missing" in row:
                notes[f"{label}: {row['missing']}"] = None
            elif "error" in row:
                mean, worst = row["error"]
                notes[f"{recipe.key}: crops of {label} differ by {mean:.3f} on average, at most by {worst}"] = None
            elif "errors" in row:
                notes[f"{recipe.key}: {label} differs after a resize, a crop and a flip: {differences(row)}"] = None
    yield ""
    yield from notes


def differences(row: Row) -> str:
    """Write the errors of an image and its parts."""
    errors = row["errors"]
    text = f"{errors['mean']:.3f} levels on average, at most {errors['worst']:.1f}"
    text += f"; boxes at most {errors['boxes']:.4f} pixels" if "boxes" in errors else ""
    return text + (f"; at least {errors['masks']:.2%} of a mask are equal" if "masks" in errors else "")


def cells(row: Row) -> str:
    """Return the columns of one candidate."""
    if "missing" in row:
        return "– | – | – | –"
    figures = (cell(spread(row[name])) if name in row else "–" for name in ("per_cpu_s", "per_s", "ratio"))
    levels = ", ".join(f"{statistics.fmean(row[name]):.1f}" for name in ("mean", "deviation"))
    return f"{' | '.join(figures)} | {levels}"


if __name__ == "__main__":
    main()
