"""Sphinx configuration: MyST pages, furo, API documentation from docstrings."""

import importlib
import inspect
import re
from pathlib import Path

import hmmscope
from hmmscope.synonyms import TERMS

project = "hmmscope"
author = "The hmmscope authors"
copyright = "The hmmscope authors"
release = version = hmmscope.__version__

extensions = ["myst_nb", "sphinx_design", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "experiments/notes", "static"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "off"  # notebooks are kept with what they printed; make notebooks runs them
html_extra_path = ["_build/extra"]  # the ledger and the live page, see the Makefile
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = "hmmscope"
templates_path: list[str] = []

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

_COLON = "\ue000"
_FORMULA = ("∝", " ~ ", " = ", " <- ")


def formulas_as_literal(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Lines of a docstring that are formulas keep their line breaks; `name` in single backquotes is code."""
    out: list[str] = []
    in_formula, started, in_item = False, False, False
    for index, line in enumerate(lines):
        in_item = bool(line.strip()) and (in_item or line.startswith("- "))
        if in_item and not line.startswith(("- ", " ")):
            line = f"  {line}"  # what goes on below an item
        paragraph_start = index == 0 or not lines[index - 1].strip()
        if paragraph_start and line.strip() and index > 0 and not line.lstrip().startswith((":", ".")):
            in_formula = any(mark in line for mark in _FORMULA) and not line.rstrip().endswith((".", ";", ","))
            started = in_formula
        if not line.strip():
            in_formula = False
        if started:
            out += ["::", ""]
            started = False
        if in_formula:
            out.append("    " + line)
        else:
            plain = "".join(
                part if part[:1] == "`" else part.replace("|", r"\|") for part in re.split(r"(`+[^`]*`+)", line)
            )
            out.append(re.sub(r"(?<![`:\w])`([^`<>]+)`(?!`)", r"``\1``", plain))
    lines[:] = [line.replace(_COLON, ":") for line in out]


def properties_as_text(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Napoleon would take what stands before a colon in the first line of a property for its type."""
    if what == "property" and lines:
        lines[0] = lines[0].replace(":", _COLON)


def values_without_their_type(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """A dictionary or a number has the documentation of its class: it says nothing of the value."""
    if what in ("data", "class") and "builtins" in (type(obj).__module__, getattr(obj, "__module__", "")):
        lines[:] = []


#: Replacements in the pages of the theme, for screen readers and keyboards.
ACCESSIBLE = {
    'class="caption" role="heading">': 'class="caption" role="heading" aria-level="2">',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="On this page">',
    '<div class="content-icon-container">': '<div class="content-icon-container" role="region" aria-label="View">',
    '<th class="head"><p></p></th>': "<td></td>",
}


def accessible(app, exception):  # type: ignore[no-untyped-def]
    """Add what the theme leaves out: levels of captions, names of landmarks, and keyboard scrolling of code and tables."""
    for page in Path(app.outdir).rglob("*.html") if exception is None and app.builder.format == "html" else ():
        text = found = page.read_text(encoding="utf-8")
        for old, new in ACCESSIBLE.items():
            found = found.replace(old, new)
        if found != text:
            page.write_text(found, encoding="utf-8")


#: Pages of the reference, one for each object, made when the documentation is built.
API = Path(__file__).parent / "generated" / "api"
_DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (\S+)\n((?:   .*\n)*)", re.MULTILINE)


def first_line(name: str) -> str:
    """Return the first sentence of an object's documentation."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        plain = type(found).__module__ == "builtins" and not callable(found) and not inspect.ismodule(found)
        return "" if plain else (inspect.getdoc(found) or "").partition("\n")[0]
    raise ImportError(name)


def also_called(name: str) -> list[str]:
    """Return the field's other words for an object, from the glossary, so that a search finds its page."""
    last = name.rpartition(".")[2]
    return list(
        dict.fromkeys(
            word
            for terms in TERMS.values()
            for term in terms
            if last in term.code
            for word in (term.name, *term.synonyms)
        )
    )


def by_section(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return the sections of reference.md: a title, and a directive for each name; of two for one name the longer."""
    block = text.partition("```{eval-rst}\n")[2].rpartition("```")[0]
    titles, found, seen = re.split(r"^(.+)\n-{3,}\n", block, flags=re.MULTILINE)[1:], [], {}
    for title, body in zip(titles[::2], titles[1::2], strict=True):
        own = {match[2]: match[0] for match in _DIRECTIVE.finditer(body)}
        new = {name: lines for name, lines in own.items() if name not in seen}
        seen |= {name: max(lines, seen.get(name, ""), key=len) for name, lines in own.items()}
        found.append((title, new))
    return [(title, {name: seen[name] for name in own}) for title, own in found]


def write_api(app):  # type: ignore[no-untyped-def]
    """Write a page for each object of reference.md."""
    API.mkdir(parents=True, exist_ok=True)
    known = {}
    for _, own in by_section((API.parents[1] / "reference.md").read_text("utf-8")):
        for name, lines in own.items():
            words = also_called(name)
            called = [f"Also called: {', '.join(words)}.", ""] if words else []
            known[API / f"{name}.md"] = "\n".join([f"# {name}", "", *called, "```{eval-rst}", lines + "```", ""])
    for page in set(API.glob("*.md")) - known.keys():
        page.unlink()
    for page, text in known.items():
        if not page.is_file() or page.read_text("utf-8") != text:
            page.write_text(text, "utf-8")


def list_api(app, docname, source):  # type: ignore[no-untyped-def]
    """Replace the directives of reference.md by tables that lead to the pages of the objects."""
    if docname != "reference":
        return
    lines = [source[0].partition("```{eval-rst}\n")[0]]
    for title, own in by_section(source[0]):
        lines += [f"## {title}", "", "| name | purpose |", "|---|---|"]
        lines += [
            f"| [{name}](generated/api/{name}.md) | {first_line(name).replace('|', chr(92) + '|')} |" for name in own
        ]
        lines += ["", "```{toctree}", ":hidden:", "", *(f"generated/api/{name}" for name in own), "```", ""]
    source[0] = "\n".join(lines)


def setup(app):  # type: ignore[no-untyped-def]
    app.connect("builder-inited", write_api)
    app.connect("source-read", list_api)
    app.connect("autodoc-process-docstring", values_without_their_type, priority=50)
    app.connect("autodoc-process-docstring", properties_as_text, priority=100)
    app.connect("autodoc-process-docstring", formulas_as_literal, priority=900)
    app.connect("build-finished", accessible)
