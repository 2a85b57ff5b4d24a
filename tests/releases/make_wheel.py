"""Makes the wheel of an older release for the tests beside this file: `python tests/releases/make_wheel.py COMMIT`.

Wheels are kept in the repository, so that the tests need neither its history nor a network. The one of a release that
is no longer supported is deleted.
"""

import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def make_wheel(commit: str) -> None:
    """Builds the tree of a commit, as it is in git, and puts the wheel beside this file."""
    archive = subprocess.run(["git", "archive", commit], cwd=FOLDER.parents[1], check=True, stdout=subprocess.PIPE)
    with tempfile.TemporaryDirectory() as tree:
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            files.extractall(tree, filter="data")
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(FOLDER), tree]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    make_wheel(sys.argv[1])
