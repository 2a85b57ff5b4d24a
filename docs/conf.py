"""The site of the documentation: `make docs`.

The pages are the Markdown files that GitHub shows, here and in the folder above, which is therefore the source of the
site. Files in reStructuredText are for the site alone: its first page, and the reference of the public modules.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Container, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from fedstack._version import __version__  # noqa: E402

project = "fedstack"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "benchmarks/README.md",
    "docs/*.md",
    "docs/gallery/*.md",
    "docs/index.rst",
    "docs/api/*.rst",
]
# Sphinx walks through all folders that this does not name.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in ("benchmarks", "docs")]

# Links to headings, as GitHub makes them.
myst_heading_anchors = 4
highlight_language = "text"
smartquotes = False

# Docstrings write names in single backticks: a link where there is a page, code everywhere else.
default_role = "py:obj"
nitpicky = True
# Names of other packages, and of what is not public, have no page. Links between pages are always checked.
nitpick_ignore_regex = [("py:.*", ".*")]
suppress_warnings = ["ref.python"]  # a name that two modules export
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attrs and `Attributes:` document the same names

html_theme = "furo"
pygments_dark_style = "github-dark"  # the default underlines names of modules
html_title = f"fedstack {release}"
html_static_path = ["site/static"]
html_extra_path = ["site/extra"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False  # LICENSE says whose it is
html_theme_options = {"top_of_page_buttons": []}

_DESCRIPTORS = (property, cached_property, classmethod, staticmethod)
_GROUPS = re.compile(r"^## (?P<caption>.+)\n(?P<text>(?:(?!^## ).*\n)*)", re.MULTILINE)


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Appends to the first page what its sidebar lists: the groups of docs/README.md."""
    if name != root_doc:
        return
    for group in _GROUPS.finditer((DOCS / "README.md").read_text(encoding="utf-8")):
        pages = re.findall(r"^\* \[(.+?)\]\((.+?)\.\w+\)", group["text"], re.MULTILINE)
        entries = "".join(f"   {title} <{page}>\n" for title, page in pages)
        source[0] += f"\n.. toctree::\n   :hidden:\n   :caption: {group['caption']}\n\n{entries}"


def add_recipes(app: Sphinx, name: str, source: list[str]) -> None:
    """Appends its script to the page of a recipe, and the pages of all recipes to the sidebar below the gallery."""
    folder, _, recipe = name.rpartition("/")
    if name == "docs/gallery":
        pages = "\n".join(dict.fromkeys(re.findall(r"\((gallery/\w+)\.md\)", source[0])))
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
    elif folder == "docs/gallery":
        (script,) = (ROOT / "examples").glob(f"**/{recipe}.py")
        source[0] += f"\n```{{literalinclude}} ../../{script.relative_to(ROOT)}\n:language: python\n```\n"


def put_side_by_side(app: Sphinx, name: str, source: list[str]) -> None:
    """Puts fedstack's code beside that of each other library, which follows the heading with its name."""
    if name != "docs/coming-from":
        return
    own = source[0].partition("```python\n")[2].partition("```")[0]
    own = own[own.index("@fedstack.python_computation") :]
    block = "```{{code-block}} python\n:caption: {}\n\n{}```\n"

    def with_own(found: re.Match[str]) -> str:
        both = block.format(found["library"], found["code"]) + block.format("fedstack", own)
        return f"{found['heading']}{found['text']}````{{container}} both\n{both}````\n"

    section = r"^(?P<heading>## (?P<library>.+)\n)(?P<text>(?:(?!##|```).*\n)*)```py\n(?P<code>(?:(?!```).*\n)*)```\n"
    source[0] = re.sub(section, with_own, source[0], flags=re.MULTILINE)


def leave_out_of_search(app: Sphinx, env: BuildEnvironment) -> None:
    """Leaves pages out of the search that name everything in a line, before the pages that explain it."""
    env.metadata["CHANGELOG"]["nosearch"] = True


def as_restructured_text(app: Sphinx, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Rewrites what docstrings have from Markdown: indented examples, and letters that follow a backtick."""
    text = re.sub(r"^(\S.*)\n\n(?= {4})", r"\1\n\n::\n\n", "\n".join(lines), flags=re.MULTILINE)
    lines[:] = re.sub(r"(?<=\w)`(?=[a-z])", r"`\\ ", text).split("\n")


def undocumented(module: ModuleType, shown: Container[str]) -> Iterator[str]:
    """Yields public classes, their methods and properties, and functions without a docstring, or that no page shows."""
    for name in getattr(module, "__all__", ()):
        item = getattr(module, name)
        members = vars(item) if inspect.isclass(item) else {}
        named = {name: item} if callable(item) else {}
        named |= {
            f"{name}.{member}": getattr(item, member)
            for member, value in members.items()
            if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, _DESCRIPTORS))
        }
        for path, value in named.items():
            has_text = value.__doc__ or (path != name and inspect.getdoc(value))  # methods show that of a base class
            if not (has_text and f"{module.__name__}.{path}" in shown):
                yield f"{module.__name__}.{path}"


def check_public_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Warns of public names that the reference lacks, which autodoc leaves out in silence."""
    for page in sorted((DOCS / "api").glob("fedstack*.rst")):
        for name in undocumented(importlib.import_module(page.stem), env.domains.python_domain.objects):
            logging.getLogger(__name__).warning("%s is public and not documented", name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Is called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("source-read", add_recipes)
    app.connect("source-read", put_side_by_side)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before napoleon
    app.connect("env-updated", leave_out_of_search)
    app.connect("env-check-consistency", check_public_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
