"""Pretrains an encoder, or goes on where a stopped run left off.

    python run_pretrain.py                                                   # the quickstart: no download, minutes
    python run_pretrain.py --config configs/cifar10_resnet18.py --workdir runs/cifar10 [--config.train.seed=1 ...]

The same command resumes. Exit codes: 0 done; 2 something about the input is wrong; 1 training failed; 128 + n stopped
by signal n with its state saved (143 for SIGTERM, 130 for SIGINT).
"""

import sys

try:
    from metamask_jax.cli.pretrain import main
except ModuleNotFoundError as error:
    what = "a Python with this package: after `make quickstart`, `. .venv/bin/activate`"
    print(f"{error}; expected {what}", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main())
