"""The page of one model: losses, beliefs before and after training, attention, a trace or the model itself; one file."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from hmmscope import __version__
from hmmscope.errors import InputError
from hmmscope.lab.report.page import LIVE_SCRIPTS, figure_view, is_triangular, json_element, policy, resource, template
from hmmscope.storage import seals, store
from hmmscope.storage.disk import refuse_special


def write_look(data: dict[str, Any], out: Path) -> Path:
    """Write the page of what was measured of a model to `out`, at once and whole; returns `out`.

    Raises:
        InputError: `out` does not end in .html.
    """
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"out: must end in .html, got {str(out)!r}")
    refuse_special(out)
    store.write_text(out, render_look(data))
    seals.cover(out)
    return out


def render_look(data: dict[str, Any]) -> str:
    """The page as text."""
    live, made = data["live"], data["made"]
    names = ["theme.js", *(LIVE_SCRIPTS if live else ("live/numbers.js", "live/pictures.js")), "live/look.js"]
    figures: list[dict[str, Any]] = []
    drawn = [] if made is None else [figure_view(one, figures, "run", made["name"]) for one in made["figures"]]
    if drawn:
        names += ["chart.js", "page.js"]
    scripts = [resource(name) for name in names]
    styles = ["base.css", *(["page.css"] if drawn else []), "live/explore.css", "live/look.css"]
    return template("live/look.html.j2").render(
        data=data,
        live=live,
        triangular=live is not None and is_triangular(live),
        said=sentence(data),
        version=__version__,
        style=Markup("".join(map(resource, styles))),
        policy=policy(scripts),
        payload=Markup(json_element({key: value for key, value in data.items() if key not in ("live", "made")})),
        made=made,
        drawn=drawn,
        figures=Markup(json_element(figures)),
        live_payload=Markup(json_element(live)),
        scripts=[Markup(script) for script in scripts],
    )


#: What training did to the belief that is read, by verdict.
_BEYOND = {
    "more": "Training put more of the belief into it than an untrained network holds",
    "no more": "Of the belief it holds no more than untrained networks do",
    "less": "Of the belief it holds less than untrained networks do",
    "not told": "Whether training put the belief into it is not told",
    "nothing": "As it has learned nothing, whether training put the belief into it is not told",
}


def sentence(data: dict[str, Any]) -> str:
    """What the page found, in a sentence or two."""
    if data["invalid"]:
        return f"INVALID: {data['invalid']}."
    losses = {row["role"]: row for row in data["losses"]}
    found = []
    model, counting = losses["model"]["value"], losses.get("ngram")
    if "exact" in losses:
        optimum = losses["exact"]["value"]
        beside = f"; counting at its best is {counting['value'] - optimum:.4f} above it" if counting else ""
        found.append(f"It is {model - optimum:.4f} {data['unit']} above the exact optimum{beside}.")
    elif counting:
        side = "above" if counting["value"] > model else "below"
        found.append(f"Counting at its best is {abs(counting['value'] - model):.4f} {data['unit']} {side} the model.")
    learned, beliefs = data["learned"], data["beliefs"]
    nothing = learned is not None and learned["verdict"] == "nothing"
    if nothing:
        found.append(f"It has learned nothing: it is no better than {learned['bar']}.")
    if beliefs is not None:
        beyond = _BEYOND["nothing" if nothing and beliefs["verdict"] == "more" else beliefs["verdict"]]
        found.append(f"{beyond}: {beliefs['text'].removeprefix('not told: ')}.")
    return " ".join(found)
