"""The rooms of the package stand one above the other: imports point down only, lazy ones included."""

import ast
import pathlib

import pytest

import metamask_jax

ROOT = pathlib.Path(metamask_jax.__file__).parent
# From the ground up. A room may import from those before it.
ROOMS = (
    "errors",
    "version",
    "core",
    "kernels",
    "models",
    "augment",
    "config",
    "data",
    "methods",
    "training",
    "reporting",
    "evaluate",
    "export",
    "experiments",
    "cli",
)
FILES = sorted(ROOT.rglob("*.py"))


def room(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: pathlib.Path) -> set[str]:
    """Rooms that a file imports from, wherever in the file; a import for type checking alone is none."""
    found = set()
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("metamask_jax.")}
    return found


def _without_type_checking(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    return tree


def test_the_root_holds_rooms_and_next_to_nothing_else() -> None:
    found = {path.name for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert found == {"__init__.py", "errors.py", "version.py", "py.typed", "zoo"} | set(ROOMS) - {"errors", "version"}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent != ROOT], ids=lambda p: str(p.relative_to(ROOT))
)
def test_imports_point_down(path: pathlib.Path) -> None:
    here = room(path)
    upward = {other for other in imported(path) - {here} if ROOMS.index(other) >= ROOMS.index(here)}
    assert not upward, f"{path.relative_to(ROOT)} imports {upward}, which stand above {here}"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Within a room as well: a module can be read without those that use it."""
    graph = {module_name(path): imports(path) for path in FILES if path.name != "__init__.py"}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name in done:
            return
        for other in sorted(graph.get(name, ())):
            visit(other, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def module_name(path: pathlib.Path) -> str:
    return ".".join(("metamask_jax", *path.relative_to(ROOT).with_suffix("").parts))


def imports(path: pathlib.Path) -> set[str]:
    """Modules, not packages, that a file imports; a name taken from a package counts as that package."""
    known = {module_name(other) for other in FILES if other.name != "__init__.py"}
    found = set()
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known
