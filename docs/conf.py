"""Sphinx configuration: MyST pages, furo, API documentation from docstrings."""

import re
from pathlib import Path

import hmmscope

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
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

_COLON = "\ue000"
_FORMULA = ("∝", " ~ ", " = ", " <- ")


def formulas_as_literal(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Lines of a docstring that are formulas keep their line breaks; `name` in single backquotes is code."""
    out: list[str] = []
    in_formula, started = False, False
    for index, line in enumerate(lines):
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
            out.append(re.sub(r"(?<![`:\w])`([^`<>]+)`(?!`)", r"``\1``", line))
    lines[:] = [line.replace(_COLON, ":") for line in out]


def properties_as_text(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Napoleon would take what stands before a colon in the first line of a property for its type."""
    if what == "property" and lines:
        lines[0] = lines[0].replace(":", _COLON)


def values_without_their_type(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """A dictionary or a number has the documentation of its class: it says nothing of the value."""
    if what in ("data", "class") and "builtins" in (type(obj).__module__, getattr(obj, "__module__", "")):
        lines[:] = []


def accessible(app, exception):  # type: ignore[no-untyped-def]
    """What the theme leaves out: levels of captions, and code and tables that a keyboard can scroll."""
    for page in Path(app.outdir).rglob("*.html") if exception is None and app.builder.format == "html" else ():
        text = page.read_text(encoding="utf-8")
        found = text.replace('class="caption" role="heading">', 'class="caption" role="heading" aria-level="2">')
        found = found.replace("<pre>", '<pre tabindex="0">')
        found = found.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
        if found != text:
            page.write_text(found, encoding="utf-8")


def setup(app):  # type: ignore[no-untyped-def]
    app.connect("autodoc-process-docstring", values_without_their_type, priority=50)
    app.connect("autodoc-process-docstring", properties_as_text, priority=100)
    app.connect("autodoc-process-docstring", formulas_as_literal, priority=900)
    app.connect("build-finished", accessible)
