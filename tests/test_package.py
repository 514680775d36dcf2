"""What a user meets first: the import, and how little it drags in."""

import subprocess
import sys

HEAVY = ("tensorflow", "tensorflow_datasets", "orbax", "matplotlib", "flax", "optax", "PIL", "sklearn", "wandb")


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, metamask_jax; print([m for m in {HEAVY} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
