"""The notebooks run from top to bottom, and are kept without outputs."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Cell by cell in one namespace, as a kernel would; what fails says in which cell.
RUN = """
import json, sys
namespace = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8"))["cells"]):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
"""
SAYS = {
    "metamask_in_fifteen_minutes": [
        "before training",
        "auc ",
        "so the mask",
        "95 % interval",
        "kB: open runs/notebook",
    ],
    "metamask_around_your_own_model": ["loss ", "trained and masked", "judge "],
}


def cells(notebook):
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def test_there_are_two_notebooks_and_pages_lead_to_them():
    assert [notebook.stem for notebook in NOTEBOOKS] == sorted(SAYS)
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert all(notebook.name in page.read_text() for notebook in NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs_and_no_magic(notebook):
    for cell in cells(notebook):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            compile(source, notebook.name, "exec")
        assert all(len(line.rstrip("\n")) <= 125 for line in cell["source"])


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path):
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, notebook],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [words for words in SAYS[notebook.stem] if words not in done.stdout] == []
    assert "warning" not in done.stderr.lower(), done.stderr
