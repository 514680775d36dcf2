"""Configurations that the commands know by name: `--config quickstart` is configs/quickstart.py.

Each file has a function `get_config`, which returns the defaults with what differs from them. An installed package has
this folder as `metamask_jax.configs`.
"""
