"""Where the time of a training step goes: the operations of the compiled step, by kind, from JAX's profiler.

    python benchmarks/shares.py [--encoder resnet18] [--width 1] [--batch 64] [--step joint] [--longest 0]

Native kernels go by their own names, XLA's fusions by theirs without the number; `ynn_fusion` and `dot` are products of
matrices. Operations may run side by side, so shares are of the sum of all times, which is more than that of the step.
"""

import collections
import gzip
import json
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import jax
from step import STEPS, our_steps, parser_of_steps

from metamask_jax.kernels.process import keep_freed_memory

_OPERATION = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(")
_TARGET = re.compile(r'custom_call_target="(?:metamask_jax\.kernels\.native\.)?([\w.]+?)(?:\.[0-9a-f]{16})?"')


def traced(run: Callable[[], Any]) -> collections.Counter[str]:
    """Microseconds by the name of what has run."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (file,) = pathlib.Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    spent: collections.Counter[str] = collections.Counter()
    for event in events:
        if event.get("ph") == "X":
            spent[event["name"]] += event["dur"]
    return spent


def operations(program: str) -> dict[str, tuple[str, str]]:
    """Kind and shape of every operation of a compiled program, by name."""
    found = {}
    for line in program.splitlines():
        if operation := _OPERATION.match(line):
            name, shape, kind = operation.groups()
            target = _TARGET.search(line)
            found[name] = (target[1] if target else re.sub(r"[.\d]+$", "", name) if kind == "fusion" else kind, shape)
    return found


def main() -> None:
    parser = parser_of_steps(__doc__)
    parser.add_argument("--step", choices=STEPS, default="joint")
    parser.add_argument("--longest", type=int, default=0, help="how many single operations to print")
    flags = parser.parse_args()
    keep_freed_memory()
    step, *arguments = our_steps(flags.encoder, flags.batch, flags.width)[flags.step]
    compiled = jax.jit(step).lower(*arguments).compile()
    for _ in range(2):  # the first times are slower
        jax.block_until_ready(compiled(*arguments))
    known = operations(compiled.as_text())
    spent = traced(lambda: jax.block_until_ready(compiled(*arguments)))
    spent = collections.Counter({name: time for name, time in spent.items() if name in known})
    kinds: collections.Counter[str] = collections.Counter()
    for name, time in spent.items():
        kinds[known[name][0]] += time
    print(f"{flags.encoder}, width {flags.width:g}, batch {flags.batch}, {flags.step}")
    for kind, time in kinds.most_common():
        if time >= 0.005 * spent.total():
            print(f"{time / 1e3:9.1f} ms {time / spent.total():6.1%}  {kind}")
    for name, time in spent.most_common(flags.longest):
        kind, shape = known[name]
        print(f"{time / 1e3:9.1f} ms  {kind}: {shape}")


if __name__ == "__main__":
    main()
