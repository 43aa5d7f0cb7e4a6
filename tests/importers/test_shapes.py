"""Every file that an importer declares comes through as it declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importers.importing import imported
from tests.importers.shapes import CASES, SHAPES
from tokenaudit.importers.base import Importer
from tokenaudit.importers.detect import IMPORTERS, detected, files_of, first_keys
from tokenaudit.importers.shapes import Shape


def test_every_importer_declares_its_files_and_each_has_a_case():
    assert [importer.name for importer in IMPORTERS.values() if not importer.shapes] == []
    assert sorted((shape.trainer, shape.file) for _, shape in SHAPES) == sorted(CASES)


@pytest.mark.parametrize(("importer", "shape"), SHAPES, ids=[f"{shape.trainer}: {shape.file}" for _, shape in SHAPES])
def test_a_file_comes_through_as_declared(importer: Importer, shape: Shape, tmp_path: Path):
    source = CASES[shape.trainer, shape.file](tmp_path)
    assert detected([source]) is importer
    # and no other importer takes one of its files for its own, whatever the order in which they are asked
    files, _ = files_of(importer, [source])
    takers = {other.name for file in files for other in IMPORTERS.values() if other.looks_like(file, first_keys(file))}
    assert takers == {importer.name}
    assert imported(importer.name, source).imports.gives() == set(shape.gives)
