"""What the API reference asks of docstrings: an extension of griffe, which reads them for mkdocstrings."""

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Sets examples as code, and warns of public names without a docstring: an error to a strict build."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Walks through a package that has just been read."""
        del kwargs
        self._visit(pkg)

    def _visit(self, obj: griffe.Object) -> None:
        if obj.docstring:
            # To griffe, `Examples:` is a section of code and `Example:` a box of prose.
            obj.docstring.value = re.sub(r"(?m)^( *)Example:$", r"\1Examples:", obj.docstring.value)
        elif obj.is_function or obj.is_class:
            griffe.logger.warning("%s:%s: %s has no docstring", obj.filepath, obj.lineno, obj.path)
        for name, member in obj.members.items():
            if not name.startswith("_") and not member.is_alias and not (obj.is_class and member.is_attribute):
                self._visit(member)
