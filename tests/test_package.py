"""What a user meets first: the import, how little it loads, and the commands of an installed wheel."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile

import pytest

from metamask_jax.config import config_names

ROOT = pathlib.Path(__file__).parent.parent
HEAVY = ("tensorflow", "tensorflow_datasets", "orbax", "matplotlib", "flax", "optax", "PIL", "sklearn", "wandb")
COMMANDS = tuple(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
TINY = {
    "train.batch_size": 8,
    "train.steps": 2,
    "data.augmentation": "eval",  # the fastest to compile
    "data.options.train_size": 64,
    "data.options.test_size": 32,
    "meta.labels": 1.0,  # a share of so few has one of each class
    "encoder.width": 0.0625,
    "method.head": (16, 8),
    "loss.drr_head": (16,),
}


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, metamask_jax; print([m for m in {HEAVY} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def build_wheel(folder):
    """A wheel of a copy of the sources, so that the build leaves nothing in the checkout."""
    source = folder / "source"
    for name in ("metamask_jax", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={folder}", source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip(python, *arguments):
    command = [sys.executable, "-m", "pip", f"--python={python}", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """Runs a command of the wheel in an empty folder; its environment borrows the dependencies of this one."""
    home, folder = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("elsewhere")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    pip(python, "install", "--no-deps", "--no-index", wheel)
    (packages,) = home.glob("lib/python*/site-packages")
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(ours)))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(command, *arguments):
        return subprocess.run(
            [home / "bin" / command, *map(str, arguments)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    run.folder = folder
    return run


def succeed(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def pretrained(run):
    """A run of two tiny steps in `run.folder / "run"`."""
    overrides = [f"--config.{key}={value}" for key, value in TINY.items()]
    succeed(run("metamask-pretrain", "--config", "quickstart", "--workdir=run", *overrides))
    assert (run.folder / "run" / "report.html").exists()
    return "--workdir=run"


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package(wheel):
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "metamask_jax").rglob("*.py")}
    configs = {f"metamask_jax/configs/{name}.py" for name in ("__init__", *config_names())}
    box = {str(path.relative_to(ROOT)) for path in (ROOT / "metamask_jax" / "zoo").rglob("*") if path.is_file()}
    assert found == ours | configs | box | {"metamask_jax/py.typed"}


@pytest.mark.slow
def test_the_package_of_the_wheel_is_the_one_that_is_used(run):
    code = "import metamask_jax as m, metamask_jax.configs.quickstart as config; print(m.__file__, config.__file__)"
    for path in succeed(run("python", "-c", code)).split():
        assert "site-packages" in path
        assert not path.startswith(str(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_installed_command_has_help_and_its_own_name(run, command):
    assert succeed(run(command, "--help")).startswith(f"usage: {command} ")


@pytest.mark.slow
def test_installed_configs_have_names_and_the_quickstart_is_the_default(run):
    unknown = run("metamask-pretrain", "--config=nothing")
    assert unknown.returncode == 2
    assert unknown.stderr == f"--config nothing; expected a Python file or one of {', '.join(config_names())}\n"
    refused = run("metamask-pretrain", "--config.train.lr=1")  # after the default config has been read
    assert (refused.returncode, refused.stderr) == (
        2,
        "config.train.lr is unknown; the nearest key is config.optimizer.learning_rate\n",
    )


@pytest.mark.slow
def test_the_installed_preview_knows_the_quickstart(run):
    sizes = [f"--config.{key}={value}" for key, value in TINY.items() if key.startswith("data.")]
    assert succeed(run("metamask-preview", "--config", "quickstart", *sizes)) == "wrote preview.png\n"
    assert (run.folder / "preview.png").stat().st_size > 0


@pytest.mark.slow
def test_installed_commands_judge_and_export_an_installed_run(run, pretrained):
    assert "knn_official" in succeed(run("metamask-evaluate", pretrained, "--protocol=knn_official"))
    assert "spectrum" in succeed(run("metamask-diagnostics", pretrained, "--only=spectrum"))
    assert "features equal" in succeed(run("metamask-export", pretrained, "--out=encoder.npz"))
    assert "features equal" in succeed(run("metamask-export", pretrained, "--verify=encoder.npz"))
    report = run.folder / "run" / "report.html"
    report.unlink()
    assert succeed(run("metamask-report", pretrained)) == "wrote run/report.html\n"
    assert "knn_official" in report.read_text()


@pytest.mark.slow
def test_the_installed_experiments_can_be_listed(run):
    assert "T1 " in succeed(run("metamask-experiments", "list"))
