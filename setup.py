"""Puts `configs/` into the package as `metamask_jax.configs`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["metamask_jax", "metamask_jax.*"]), "metamask_jax.configs"],
    package_dir={"metamask_jax.configs": "configs"},
    package_data={"metamask_jax": ["py.typed", "zoo/*", "zoo/*/*"]},
)
