"""Evaluates a pretrained encoder from its workdir: nearest neighbours, linear and MLP probes, fine-tuning.

    python run_linear.py --workdir runs/cifar10 [--step best] [--protocol all] [--dataset cifar100] [--size 5000]

Results go to evaluation.json, evaluation.md and report.html in the workdir; docs/evaluation.md tells what they mean.
Exit codes: 0 done; 2 something about the input is wrong.
"""

import sys

try:
    from metamask_jax.cli.evaluate import main
except ModuleNotFoundError as error:
    what = "a Python with this package: after `make quickstart`, `. .venv/bin/activate`"
    print(f"{error}; expected {what}", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main())
