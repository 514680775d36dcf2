"""Every command on a page works: its flags, names and files exist; those of the README and of exporting are run, scaled
down, by a slow test. What a page marks as untested is left out, and so are commands of other programs."""

import importlib
import json
import pathlib
import re
import shlex
import tomllib

import pytest

from metamask_jax.config import apply_overrides, flatten, load_config
from metamask_jax.core.longer_trials import LONGER_TRIALS
from metamask_jax.methods import METHODS
from metamask_jax.training.registry import TRAINING_ESTIMATORS, validate
from tests.test_own_folder import LAYOUTS, TINY, pictures

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
OURS = (
    r"(?:\w+=\S+ )*(?:python3? (?:-m metamask_jax\.cli\.(?!NAME)|-m pytest|run_|benchmarks/|examples/)|"
    r"metamask-[a-z-]+ |make |pip )"
)
# What placeholders on pages stand for; a folder and a run are made for them.
STAND_INS = {
    "PATH,SIZE": "pictures,16",
    "PATH": "pictures",
    "my/experiment.py": "experiment.py",
    "NAME,NAME": "spectrum,correlation",
    "zoo:NAME": "encoder",
    "DIR": "run",
    "ID": "F8",
    "HOST:PORT": "127.0.0.1:1",
    "N": "2",  # processes
    "I": "0",  # which of them
}
OUTER = ("batch", "next", "views", "labels")
# Where the work of each command begins, once its flags are known to be good.
BEGINNINGS = {
    name: [f"metamask_jax.cli.{name}.set_up_process"] for name in ("pretrain", "diagnostics", "export", "preview")
} | {
    "evaluate": ["metamask_jax.cli.evaluate.set_up_process", "metamask_jax.experiments.comparison.compare"],
    "experiments": [f"metamask_jax.cli.experiments.{name}" for name in ("set_up_process", "_list", "_show", "_page")],
    "report": ["metamask_jax.reporting.report.write_report", "metamask_jax.reporting.compare.write_comparison"],
    "prepare": ["tensorflow_datasets.builder"],
    "doctor": ["metamask_jax.cli.doctor.examine"],
    "compile_for": ["metamask_jax.training.compilation.topology"],
}
WORKDIRS = re.compile(r"\bruns/[\w-]+|(?<=--workdir )DIR\b")


def commands(page: pathlib.Path) -> list[str]:
    """The commands of a page: in indented blocks, in blocks of a shell, and between back quotes in the text."""
    text = re.sub(r"(?ms)^```python\n.*?^```$", "", page.read_text())
    text = text.replace("\\\n", " ")
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        if "untested" in paragraph:
            continue
        for line in paragraph.splitlines():
            if re.match(rf"(?: {{4}}){OURS}", line):
                found.append(line.strip())
            found += re.findall(rf"`({OURS}[^`]*)`", line)
    return [re.split(r"\s+#|\s+&$", command)[0].strip() for command in found]


COMMANDS = [(page.name, command) for page in PAGES for command in commands(page)]


def words(command: str) -> list[str]:
    """A command without variables, what is optional kept, and with stand-ins for placeholders."""
    command = command.replace("...", "")
    command = re.sub(r"\[(--[^\]]*)\]", r"\1", command)
    for placeholder, stand_in in STAND_INS.items():
        command = re.sub(rf"(?<![\w/.-]){re.escape(placeholder)}(?![\w/.-])", stand_in, command)
    return [word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=\S*", word)]


def entry(parts: list[str]) -> tuple[str, list[str]] | None:
    """The module of one of our commands, and its arguments; None for other programs."""
    scripts = {"run_pretrain.py": "metamask_jax.cli.pretrain", "run_linear.py": "metamask_jax.cli.evaluate"}
    if parts[0] in SCRIPTS:
        return SCRIPTS[parts[0]].partition(":")[0], parts[1:]
    if parts[0].startswith("python"):
        if parts[1] in scripts:
            return scripts[parts[1]], parts[2:]
        if parts[1] == "-m" and parts[2].startswith("metamask_jax.cli."):
            return parts[2], parts[3:]
    return None


class Understood(BaseException):
    """Raised in place of the work that a command would begin: its flags are good."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with what the commands of the pages name: pictures, a configuration, and runs that were evaluated."""
    root = tmp_path_factory.mktemp("home")
    (root / "experiment.py").write_text((ROOT / "configs" / "quickstart.py").read_text())
    (root / "configs").symlink_to(ROOT / "configs")
    (root / "pictures").mkdir()
    for i in range(4):
        (root / "pictures" / f"{i}.png").write_bytes(b"")
    return root


def make_run(folder: pathlib.Path) -> None:
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(validate(load_config("quickstart")).to_dict()))


def test_commands_are_found():
    assert len(COMMANDS) > 50
    assert {page for page, _ in COMMANDS} >= {"README.md", "export.md", "estimators.md", "methods.md", "pretraining.md"}


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda text: text[:70])
def test_a_command_on_a_page_is_understood(page, command, home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    parts = words(command)
    if parts[0] == "make":
        assert set(parts[1:]) <= TARGETS
    elif parts[0] == "pip":
        extras = re.findall(r"\[([\w,]+)\]", command)
        assert all(name in EXTRAS for extra in extras for name in extra.split(","))
    elif (found := entry(parts)) is not None:
        check_ours(*found, home, monkeypatch, capsys)
    else:
        check_script(parts)


def check_script(parts: list[str]) -> None:
    """A benchmark, an example or tests: the files are there, and know the flags."""
    if parts[1:3] == ["-m", "pytest"]:
        assert all((ROOT / part).is_file() for part in parts[3:] if not part.startswith("-"))
        return
    text = (ROOT / parts[1]).read_text()
    for flag in (part for part in parts[2:] if part.startswith("--")):
        name = flag.removeprefix("--").partition("=")[0]
        assert re.search(rf"""["'](?:--)?{name}["']|\b{name.replace("-", "_")}\b""", text), flag


def check_ours(module, arguments, home, monkeypatch, capsys) -> None:
    """One of our commands reaches the point where its work would begin."""
    for name in {*WORKDIRS.findall(" ".join(arguments)), *({"run"} & set(arguments))}:
        make_run(home / name)

    def stop(*_: object, **__: object) -> None:
        raise Understood

    for name in BEGINNINGS[module.removeprefix("metamask_jax.cli.")]:
        monkeypatch.setattr(name, stop)
    check_config(arguments)
    try:
        code = importlib.import_module(module).main(arguments)
    except Understood:
        return
    raise AssertionError(f"exit code {code}: {capsys.readouterr().err}")


def check_config(arguments: list[str]) -> None:
    """The configuration of a command is a good one."""
    given = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--config"]
    if given and not given[0].startswith("image_folder"):
        flags = (word.removeprefix("--config.") for word in arguments if word.startswith("--config."))
        validate(apply_overrides(load_config(given[0]), dict(flag.split("=", 1) for flag in flags)))


@pytest.mark.parametrize(
    ("page", "key", "names"),
    [
        ("estimators.md", "meta.estimator", (*TRAINING_ESTIMATORS, *LONGER_TRIALS)),
        ("judges.md", "meta.outer", OUTER),
        ("methods.md", "method.name", tuple(METHODS)),
    ],
)
def test_every_part_with_a_name_has_a_section_with_one_command(page, key, names):
    sections = dict(re.findall(r"(?ms)^## `(\w+)`$(.*?)(?=^## |\Z)", (ROOT / "docs" / page).read_text()))
    assert sorted(sections) == sorted(names)
    for name, section in sections.items():
        (command,) = re.findall(r"(?m)^ {4}(python .*)$", section)
        _, arguments = entry(words(command))
        overrides = dict(w.removeprefix("--config.").split("=", 1) for w in arguments if w.startswith("--config."))
        config = validate(apply_overrides(load_config(arguments[arguments.index("--config") + 1]), overrides))
        assert flatten(config)[key] == name


@pytest.mark.slow
def test_commands_of_the_readme_work_one_after_another(tmp_path, monkeypatch, capsys):
    """Training, evaluation, diagnostics, reports and exports as they stand there, on few pictures."""
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "pictures", LAYOUTS["classes"])
    small = [*TINY, "--config.data.dir=data", "--config.eval.k=2"]
    shapes = ["--config.data.name=confounded_shapes", "--config.data.image_size=32", "--config.train.batch_size=8"]
    shapes += [
        "--config.data.options.train_size=80",
        "--config.data.options.test_size=32",
        "--config.encoder.init=None",
    ]
    shorter = {
        "pretrain": small,
        "evaluate": [],
        "diagnostics": ["--trials=1", "--only=spectrum,information"],
    }
    done = []
    for command in commands(ROOT / "README.md"):
        found = entry(words(command))
        if found is None:
            continue
        module, arguments = found
        name = module.removeprefix("metamask_jax.cli.")
        extra = shorter.get(name, [])
        if name == "pretrain" and "image_folder:pictures,16" not in arguments:
            extra = extra + shapes
        if "--encoder" in arguments:
            extra = ["--data-dir=data"]
        if "encoder.safetensors" in arguments:  # the tiny network is no ResNet
            arguments = [word.replace(".safetensors", ".npz") for word in arguments]
        assert importlib.import_module(module).main([*arguments, *extra]) == 0, capsys.readouterr().err
        done.append(name)
    assert set(done) >= {"pretrain", "evaluate", "diagnostics", "report", "export", "experiments"}
    assert (tmp_path / "comparison.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "runs" / "encoder" / "evaluation.json").read_text())["results"]
