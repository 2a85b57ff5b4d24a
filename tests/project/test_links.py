"""The links of all pages, and the index of docs."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
GALLERY = sorted((ROOT / "docs" / "gallery").glob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *GALLERY, ROOT / "benchmarks" / "README.md"]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


def text_of(page: Path) -> str:
    """Returns the text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """Returns what GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def targets_of(page: Path) -> set[Path]:
    """Returns the files of this repository that a page links to."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text_of(page))
    return {(page.parent / link).resolve() for link in links}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_a_file_and_to_a_heading(name: str) -> None:
    page = ROOT / name
    broken: list[str] = []
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text_of(page)):
        target = (page.parent / link).resolve() if link else page
        if not target.is_file() or (anchor and anchor not in anchors_of(target)):
            broken.append(f"{link}#{anchor}" if anchor else link)
    assert broken == []


def test_the_index_lists_every_page() -> None:
    listed = targets_of(ROOT / "docs" / "README.md")
    assert [page.name for page in DOCS if page.name != "README.md" and page not in listed] == []


def test_the_readme_lists_every_page() -> None:
    listed = targets_of(ROOT / "README.md")
    assert [page.name for page in DOCS if page not in listed] == []


def test_the_gallery_lists_every_recipe() -> None:
    listed = targets_of(ROOT / "docs" / "gallery.md")
    recipes = {path.stem for path in (ROOT / "examples" / "recipes").glob("*.py")}
    assert {page.stem for page in GALLERY} == recipes | {"curves"}
    assert [page.name for page in GALLERY if page not in listed] == []


@pytest.mark.parametrize("page", GALLERY, ids=lambda page: page.stem)
def test_the_page_of_a_recipe_shows_its_picture_and_leads_to_its_script(page: Path) -> None:
    (script,) = (ROOT / "examples").glob(f"**/{page.stem}.py")
    pictures = {page.with_suffix(suffix) for suffix in (".png", ".svg")}
    assert script in targets_of(page)
    assert pictures & targets_of(page)
    assert pictures & targets_of(ROOT / "docs" / "gallery.md")


def test_pages_that_code_and_tests_name_exist() -> None:
    files = [path for folder in ("fedstack", "tests", "examples", "scripts") for path in (ROOT / folder).rglob("*.py")]
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for path in files
        for page in re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert named
    assert [name for name in sorted(named) if not (ROOT / name[1]).is_file()] == []


def test_the_site_has_the_code_of_fedstack_beside_that_of_each_other_library() -> None:
    source = [(ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")]
    others = source[0].count("\n```py\n")
    runpy.run_path(str(ROOT / "docs" / "conf.py"))["put_side_by_side"](None, "docs/coming-from", source)
    assert others == 5
    assert source[0].count("\n:caption: fedstack\n\n@fedstack.python_computation") == others
    assert "\n```py\n" not in source[0]
