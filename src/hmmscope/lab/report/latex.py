"""Escaping of text for LaTeX in figures of the style `latex`, so that the text cannot contain commands."""

import re
import shutil
import unicodedata

from hmmscope.errors import ResourceError

#: The program that measures the size of text.
PROGRAM = "pdflatex"

_ASCII = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
_ASCII |= {"<": r"\textless{}", ">": r"\textgreater{}", "`": r"\textasciigrave{}"}
_ASCII |= {char: f"\\{char}" for char in "{}&#%_"} | {'"': "''", "$": r"\textdollar{}"}
_SIGNS = {
    "−": "-",
    "×": r"\times",
    "·": r"\cdot",
    "±": r"\pm",
    "√": r"\surd",
    "‖": r"\Vert",
    "∞": r"\infty",
    "∝": r"\propto",
}
_SIGNS |= {
    "≤": r"\le",
    "≥": r"\ge",
    "≈": r"\approx",
    "≠": r"\ne",
    "→": r"\to",
    "←": r"\leftarrow",
    "∈": r"\in",
    "Σ": r"\Sigma",
    "½": r"\tfrac12",
    "⌈": r"\lceil",
    "⌉": r"\rceil",
    "⌊": r"\lfloor",
    "⌋": r"\rfloor",
}
_MARKS = {"–": "--", "—": "---", "…": r"\ldots{}", "’": "'", "‘": "`", "“": "``", "”": "''", "§": r"\S{}"}
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega"
)
_CAPITALS = "gamma delta theta lambda xi pi sigma upsilon phi psi omega"
_ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"'}


def as_latex(text: str) -> str:
    return "".join(map(_letter, text))


def require_latex() -> None:
    if shutil.which(PROGRAM) is None:
        raise ResourceError(f"style: latex needs {PROGRAM} (on Debian: texlive-latex-recommended, texlive-pictures)")


def _letter(char: str) -> str:
    if char in _ASCII or char.isascii():
        return _ASCII.get(char, char)
    if char in _MARKS:
        return _MARKS[char]
    if char in _SIGNS:
        return rf"\ensuremath{{{_SIGNS[char]}}}"
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(char, "").replace("LAMDA", "LAMBDA"))
    if greek is not None:
        name, known = greek[2].lower(), _GREEK if greek[1] == "SMALL" else _CAPITALS
        if name in known.split():
            return rf"\ensuremath{{\{name if greek[1] == 'SMALL' else name.capitalize()}}}"
    kind, *codes = unicodedata.decomposition(char).split() or [""]
    if kind in ("<super>", "<sub>"):
        return rf"\text{kind[1:-1]}script{{{as_latex(''.join(chr(int(code, 16)) for code in codes))}}}"
    if len(codes) == 1 and (accent := _ACCENTS.get(chr(int(codes[0], 16)))):
        return rf"\{accent}{{{as_latex(chr(int(kind, 16)))}}}"
    return f"U+{ord(char):04X}"
