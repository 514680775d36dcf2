"""What gets installed: pinned, with a digest each, from nowhere in particular."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def test_every_locked_version_has_a_digest_and_no_address():
    locked, hashed = ((ROOT / name).read_text() for name in ("requirements.lock", "requirements.hashes"))
    pins = re.findall(r"^(\S+==\S+)$", locked, re.MULTILINE)
    digests = re.findall(r"^(\S+==\S+) --hash=sha256:[0-9a-f]{64}$", hashed, re.MULTILINE)
    assert len(pins) == len(locked.splitlines())
    assert len(digests) == len(hashed.splitlines())
    assert sorted(map(normal, pins)) == sorted(map(normal, digests))
    assert "://" not in locked + hashed


def normal(pin):
    """Pip takes `_`, `.` and `-` in names for the same."""
    name, version = pin.split("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version
