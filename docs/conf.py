"""Sphinx configuration: MyST pages, furo, API documentation from docstrings."""

import hmmscope

project = "hmmscope"
author = "The hmmscope authors"
copyright = "The hmmscope authors"
release = version = hmmscope.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "hmmscope"
templates_path: list[str] = []

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

_FORMULA = ("∝", " ~ ", " = ", " <- ")
_SECTIONS = ("Args:", "Returns:", "Raises:", "Attributes:", "Source:", "Cost:")


def formulas_as_literal(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Lines of a docstring that are formulas keep their line breaks; `name` in single backquotes is code."""
    import re

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
    lines[:] = out


def setup(app):  # type: ignore[no-untyped-def]
    app.connect("autodoc-process-docstring", formulas_as_literal, priority=900)
