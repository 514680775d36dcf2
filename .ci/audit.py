"""Asks pip-audit for known vulnerabilities of the locked versions, and says so if nobody could be asked.

By itself pip-audit finds nothing wrong with a package that its source does not know, as behind a mirror. Exit codes: 0
nothing is known, or nobody could be asked; 1 something is known.
"""

import json
import subprocess
import sys


def main(command: str) -> int:
    """Runs pip-audit and prints what it found."""
    flags = ["--disable-pip", "--require-hashes", "--requirement", "requirements.hashes"]
    done = subprocess.run(
        [command, *flags, "--progress-spinner", "off", "--format", "json"], capture_output=True, text=True, check=False
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"skipped: pip-audit could not ask anybody ({reason})")
        return 0
    asked = [package for package in packages if "skip_reason" not in package]
    if not asked:
        print(f"skipped: the source of vulnerabilities knows none of the {len(packages)} packages from here")
        return 0
    for package in asked:
        for found in package["vulns"]:
            mended = ", ".join(found["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {found['id']}, mended in {mended}")
    known = sum(len(package["vulns"]) for package in asked)
    print(f"{len(asked)} of {len(packages)} packages were asked for; {known} vulnerabilities are known")
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
