"""The pages are about the code as it is: names, links, rooms and files."""

import ast
import doctest
import importlib
import itertools
import pathlib
import re
import tomllib
from typing import Any

import pytest

import metamask_jax
from tests.test_layers import ROOMS

PACKAGE = pathlib.Path(metamask_jax.__file__).parent
ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
API = {page: re.findall(r"(?m)^::: (\S+)$", page.read_text()) for page in sorted((DOCS / "api").glob("*.md"))}
LISTED = sorted({name for names in API.values() for name in names})
FOLDERS = {name for name in ROOMS if (PACKAGE / name).is_dir()}


def short(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def file_of(module: str) -> pathlib.Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def module_of(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def public_definitions(path: pathlib.Path) -> dict[str, str | None]:
    """Docstrings of the public functions and classes of a file, and of the public methods of these classes."""
    found = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                found[prefix + node.name] = ast.get_docstring(node)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(path.read_text()).body, "")
    return found


def documented_constants(path: pathlib.Path) -> set[str]:
    """Names assigned at the top of a file with a docstring right below."""
    body = ast.parse(path.read_text()).body
    found = set()
    for node, below in itertools.pairwise(body):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("module", LISTED)
def test_public_names_of_the_reference_have_docstrings(module):
    names = public_definitions(file_of(module))
    assert names
    assert [name for name, docstring in names.items() if not docstring] == []


@pytest.mark.parametrize("name", sorted(set(metamask_jax.__all__) - {"__version__"}))
def test_every_name_of_the_public_api_is_documented_and_in_the_reference(name):
    home = file_of(f"metamask_jax.{metamask_jax._HOME_OF[name]}")
    files = sorted(home.parent.glob("*.py")) if home.name == "__init__.py" else [home]
    documented = {key for path in files for key, text in public_definitions(path).items() if text}
    assert name in documented.union(*map(documented_constants, files))
    assert name in re.findall(r"`(\w+)`", (DOCS / "api" / "index.md").read_text())


@pytest.mark.parametrize("page", [page for page in API if page.stem in FOLDERS], ids=short)
def test_the_reference_of_a_room_lists_all_its_modules(page):
    files = (PACKAGE / page.stem).rglob("*.py")
    assert sorted(API[page]) == sorted(module_of(path) for path in files if public_definitions(path))


def prose(text: str) -> str:
    """A page without its code."""
    without_blocks = re.sub(r"(?ms)^```.*?^```$", "", text)
    return re.sub(r"`[^`\n]*`", "`", without_blocks)


def anchors(page: pathlib.Path) -> set[str]:
    """Names of a page's headings, where a code host and the site agree on them."""
    found = set()
    for title in re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text())):
        words = re.sub(r"[^\w\s-]", "", title.lower()).strip()
        host, site = words.replace(" ", "-"), re.sub(r"[-\s]+", "-", words)
        if host == site:
            found.add(host)
    return found


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.is_file(), f"{target} in {short(page)}"
        assert goal.is_relative_to(ROOT), f"{target} in {short(page)}"
        assert not anchor or anchor in anchors(goal), f"{target} in {short(page)}"


def test_the_architecture_names_every_room_and_every_file():
    text = (DOCS / "architecture.md").read_text()
    sections = re.findall(r"(?ms)^### `(\w+)/`$(.*?)(?=^##|\Z)", text)
    assert [room for room, _ in sections] == [name for name in ROOMS if name in FOLDERS]
    for room, section in sections:
        named = re.findall(r"(?m)^\| `(\S+\.py)` \| \S", section)
        there = [path.relative_to(PACKAGE / room).as_posix() for path in (PACKAGE / room).rglob("*.py")]
        assert sorted(named) == sorted(name for name in there if pathlib.Path(name).name != "__init__.py"), room


def test_the_picture_of_the_architecture_shows_every_room():
    shown = re.findall(r">(\w+)/</text>", (DOCS / "images" / "architecture.svg").read_text())
    assert sorted(shown) == sorted(FOLDERS)


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_files_modules_and_commands_that_pages_mention_exist(page):
    """What was moved or renamed is not forgotten."""
    text = page.read_text()
    for path in re.findall(r"\b((?:metamask_jax|tests|benchmarks|configs|examples|docs)/[\w/]+\.\w+)", text):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"(?<![\w/])metamask_jax(?:\.\w+)+", text):
        if name != "metamask_jax.cli.NAME":
            resolve(name)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(re.findall(r"\bmetamask-[a-z]+(?:-[a-z]+)*", text)) <= {"metamask-NAME", *scripts}


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_code_on_pages_imports_what_exists(page):
    for block in re.findall(r"(?ms)^```python\n(.*?)^```$", page.read_text()):
        if ">>>" in block:
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("metamask_jax"):
                for alias in node.names:
                    resolve(f"{node.module}.{alias.name}")


def resolve(name: str) -> Any:
    """What a dotted name stands for."""
    first, *rest = name.split(".")
    found = importlib.import_module(first)
    for i, part in enumerate(rest):
        if not hasattr(found, part):
            importlib.import_module(".".join((first, *rest[: i + 1])))
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("page", [page for page in sorted(DOCS.glob("*.md")) if ">>>" in page.read_text()], ids=short)
def test_examples_on_pages_give_what_they_say(page):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testfile(str(page), module_relative=False, optionflags=options).failed == 0


def test_citation_and_changelog_know_the_version():
    assert f"\nversion: {metamask_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {metamask_jax.__version__}" in (ROOT / "CHANGELOG.md").read_text()
