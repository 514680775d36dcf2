"""The commands: flags in, exit code out, one sentence for whatever is wrong.

Each module is one command: `python -m metamask_jax.cli.pretrain`, or `metamask-pretrain` once the package is installed.
"""
