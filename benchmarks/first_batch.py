"""How long until the first batch? A fresh process each time, first without the decoded arrays, then with them.

python benchmarks/first_batch.py --data_dir=DIR
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

from metamask_jax.data import in_memory as arrays
from metamask_jax.data import prepared

PROGRAM = """
from metamask_jax.data import batches, open_source
source = open_source({name!r}, split="pretrain", data_dir={data_dir!r})
next(iter(batches(source, seed=0, start_step=0, batch_size=256, process_index=0, process_count=1)))
"""


def measure(name: str, data_dir: str) -> str:
    """Returns the wall-clock and processor time of a fresh process that ends right after its first batch."""
    start, used = time.perf_counter(), os.times()
    program = PROGRAM.format(name=name, data_dir=data_dir)
    subprocess.run([sys.executable, "-c", program], check=True, stderr=subprocess.DEVNULL)
    wall, now = time.perf_counter() - start, os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    return f"{wall:.1f} s ({cpu:.1f} s of processor time)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data_dir", required=True, help="where the prepared set lies; its decoded arrays are removed")
    parser.add_argument("--name", default="cifar10")
    args = parser.parse_args()
    data_dir = str(pathlib.Path(args.data_dir).resolve())
    found = prepared.find(args.name, data_dir)
    if found is None:
        sys.exit(f"{args.name} is not prepared in {data_dir}")
    shutil.rmtree(arrays.cache_folder(found, "train", data_dir), ignore_errors=True)
    print(f"{args.name}, first batch of 256: decoding {measure(args.name, data_dir)}", end=", ", flush=True)
    print(f"with the decoded arrays {measure(args.name, data_dir)}")


if __name__ == "__main__":
    main()
