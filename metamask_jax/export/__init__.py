"""Taking the encoder out: to a file that other programs read, or to a function in this one.

    python -m metamask_jax.cli.export --workdir DIR --out encoder.safetensors

writes a pretrained encoder and proves that the file gives the checkpoint's features; `--format hf --out DIR` writes a
folder that hubs of models understand.
"""

from metamask_jax.core.array_files import Export, read_export
from metamask_jax.core.encoder_folders import zoo_names
from metamask_jax.errors import ExportError
from metamask_jax.export.encoder import LoadedEncoder, Preprocessing, load_encoder
from metamask_jax.export.hub import export_folder
from metamask_jax.export.write import FORMATS, MASKS, export_encoder, verify_export

__all__ = [
    "FORMATS",
    "MASKS",
    "Export",
    "ExportError",
    "LoadedEncoder",
    "Preprocessing",
    "export_encoder",
    "export_folder",
    "load_encoder",
    "read_export",
    "verify_export",
    "zoo_names",
]
