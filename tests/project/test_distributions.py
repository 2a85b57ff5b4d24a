"""What `make dist` builds: the same bytes from the same sources, and all that commands read."""

import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import fedstack
from fedstack.command_line.explain_error_command import paragraphs

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def built(sources: Path, folder: Path) -> dict[str, Path]:
    """Builds both distributions, and returns them by name."""
    builders = (WheelBuilder(str(sources)), "standard"), (SdistBuilder(str(sources)), "standard")
    made = [path for builder, kind in builders for path in builder.build(directory=str(folder), versions=[kind])]
    return {Path(path).name: Path(path) for path in made}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1790000000")
        return built(ROOT, tmp_path_factory.mktemp("first"))


def test_the_same_sources_are_the_same_bytes_in_another_folder_and_at_another_time(
    first: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = fedstack.__version__
    assert set(first) == {f"fedstack-{version}-py3-none-any.whl", f"fedstack-{version}.tar.gz"}
    with tarfile.open(first[f"fedstack-{version}.tar.gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    sources = tmp_path / f"fedstack-{version}"
    for path in sources.rglob("*.md"):
        path.touch()
        path.chmod(0o600)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    again = built(sources, tmp_path / "again")
    assert {name: path.read_bytes() for name, path in again.items()} == {
        name: path.read_bytes() for name, path in first.items()
    }


def test_the_wheel_has_the_paragraphs_about_errors(first: dict[str, Path]) -> None:
    wheel = next(path for name, path in first.items() if name.endswith(".whl"))
    with zipfile.ZipFile(wheel) as archive:
        page = archive.read("fedstack/command_line/errors.md").decode()
    assert [name for name in paragraphs() if f"\n### {name}\n" not in page] == []
