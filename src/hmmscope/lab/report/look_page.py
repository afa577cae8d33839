"""The page of one model: losses, beliefs before and after training, attention, a trace or the model itself; one file."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from hmmscope import __version__
from hmmscope.errors import InputError
from hmmscope.lab.report.page import LIVE_SCRIPTS, figure_view, is_triangular, json_element, policy, resource, template
from hmmscope.storage import seals, store
from hmmscope.storage.disk import refuse_special
from hmmscope.text import in_digits


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
        twins=_TWINS,
        use=of_use(data) if data["used"] else None,
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
    "not told": "Whether training put the belief into it is not identifiable",
    "nothing": "As it has learned nothing, whether training put the belief into it is not identifiable",
}
#: R² from which on a word says how much of the belief an affine map finds.
_SIZES = (
    (0.95, "nearly all"),
    (0.8, "most"),
    (0.5, "much"),
    (0.2, "a part"),
    (0.05, "little"),
    (-1e9, "next to nothing"),
)


#: What twins are, where a reader meets them first.
_TWINS = "the same network with other first weights and no training"


def described_layer(layer: str) -> str:
    """``residual.1, the output of layer 1,``: layers have these names in models of all kinds."""
    stem, _, number = layer.rpartition(".")
    if stem != "residual" or not number.isdecimal():
        return layer
    return f"{layer}, the {f'output of layer {number}' if int(number) else 'input of the first layer'},"


def sentence(data: dict[str, Any]) -> str:
    """What the page found, in a few sentences, each with the numbers that carry it."""
    if data["invalid"]:
        return f"INVALID: {data['invalid']}."
    found = [_of_losses(data)]
    learned, beliefs = data["learned"], data["beliefs"]
    nothing = learned is not None and learned["verdict"] == "nothing"
    if nothing:
        found.append(f"It has learned nothing: it is no better than {learned['bar']}.")
    if beliefs is not None:
        size = next(word for least, word in _SIZES if beliefs["r2"] >= least)
        twins = "" if beliefs["twins"] is None else f", and its untrained twins, {_TWINS}, have {beliefs['twins']:.3f}"
        found.append(
            f"An affine map of {described_layer(beliefs['best'])} gives {size} of the belief: R² is {beliefs['r2']:.3f}, "
            f"where 1 would be all of it{twins}."
        )
        beyond = _BEYOND["nothing" if nothing and beliefs["verdict"] == "more" else beliefs["verdict"]]
        found.append(f"{beyond}: {beliefs['text'].removeprefix('not told: ').removeprefix('not identifiable: ')}.")
    return " ".join(filter(None, found))


def _of_losses(data: dict[str, Any]) -> str:
    """How far model and counting are above the optimum, and which of them is ahead."""
    losses, ahead, unit = {row["role"]: row for row in data["losses"]}, data["ahead"], data["unit"]
    above = losses["model"]["above"]
    which = "" if ahead is None else _ahead(ahead)
    if above is None:
        return f"{which[0].upper()}{which[1:]}." if which else ""
    beside = f"; counting at its best is {_told(losses['ngram']['above'])} above it, and {which}" if which else ""
    return f"It is {_told(above)} {unit} above the exact optimum{beside}."


def _ahead(ahead: dict[str, float]) -> str:
    if ahead["low"] > 0:
        return f"the model is ahead of counting by {_told(ahead)}"
    if ahead["high"] < 0:
        return f"the model is behind counting by {_told({key: -ahead[key] for key in ('value', 'low', 'high')})}"
    return f"no difference between the two is seen: the model is ahead by {_told(ahead)}"


def _told(number: dict[str, float]) -> str:
    low, high = sorted((number["low"], number["high"]))
    return in_digits(number["value"], low, high, least=3)


#: Why an answer can go away from what another belief calls for.
_DISTURBED = ": it only disturbs the answer, which then is farther from any that is right"


def of_use(data: dict[str, Any]) -> str:
    """Whether the answer follows a belief that is written into a layer, over many sequences."""
    found, learned = data["used"], data["learned"]
    said = (
        f"In {found['samples']} held-out sequences, at {found['positions']} positions each, {found['layer']} was changed so "
        f"that the belief of another sequence is read there. The answer, which is what the model predicts of the next "
        f"symbol, then went {found['text']} of the way to what an observer with that belief would predict: 0 is no change, "
        f"1 all the way, below 0 away from it. A change as large in a random direction took it {found['random_text']} of "
        f"that way{_DISTURBED if found['random']['high'] < 0 else ''}."
    )
    if learned is not None and learned["verdict"] == "nothing":
        return said
    if found["low"] <= max(0.0, found["random"]["high"]):
        return f"{said} So no use of the belief is seen here."
    return f"{said} So the model uses what is read there{'' if found['value'] >= 0.5 else ', in part'}."
