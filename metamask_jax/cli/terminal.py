"""What is shown in a terminal: lines that break between words, and commands that run as they are printed."""

import logging
import os
import shutil
import sys
import textwrap
from typing import TextIO

# What an installation without a checkout has in place of files of the checkout.
_MODULES = {
    "run_pretrain.py": "metamask_jax.cli.pretrain",
    "run_linear.py": "metamask_jax.cli.evaluate",
    "examples/own_model_linen.py": "pydoc metamask_jax.metamask",
}


def fitted(text: str, stream: TextIO, *, indent: int = 0) -> str:
    """Text for a stream: as it is for a file, and for a terminal broken between words, where its lines end.

    Args:
      text: of one or more lines; an indented line goes on as far to the right.
      stream: what the text is written to.
      indent: blanks before the further parts of a line.

    Returns:
      The text, without a final line break of its own.
    """
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return "\n".join(_broken(line, columns, indent) for line in text.splitlines())


def say(text: str, *, indent: int = 0) -> None:
    """Prints text to where results go, at once; what is too long for a line goes on below, after some blanks."""
    print(fitted(text, sys.stdout, indent=indent), flush=True)


def _broken(line: str, columns: int, blanks: int) -> str:
    if len(line) <= columns:
        return line
    indent = line[: len(line) - len(line.lstrip())] + " " * blanks
    return textwrap.fill(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


class FittedFormatter(logging.Formatter):
    """Log messages alone, fitted to where they are shown."""

    def format(self, record: logging.LogRecord) -> str:
        """The message of a record."""
        return fitted(super().format(record), sys.stderr)


def runnable(command: str) -> str:
    """A command such as `python run_pretrain.py ...`, spelt so that it runs from here, as this process does.

    `python` becomes the path of this one where a shell would find another or none, such as outside of an activated
    virtual environment; files of a checkout become modules that do the same where it is not at hand.
    """
    for file, module in _MODULES.items():
        if not os.path.isfile(file):
            command = command.replace(f"python {file}", f"python -m {module}")
    return command.replace("python ", f"{_python()} ", 1)


def _python() -> str:
    """How to call this Python from the current folder."""
    here = os.path.dirname(os.path.abspath(sys.executable))
    if (found := shutil.which("python")) and os.path.dirname(os.path.abspath(found)) == here:
        return "python"
    relative = os.path.relpath(sys.executable)
    return sys.executable if relative.startswith(os.pardir) else relative
