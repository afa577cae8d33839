"""The HTML of the model page: losses, beliefs before and after training, attention, and a trace or the model itself."""

import re
from pathlib import Path
from typing import Any

from markupsafe import Markup

from hmmscope import __version__
from hmmscope.errors import InputError
from hmmscope.lab.report.page import LIVE_SCRIPTS, figure_view, is_triangular, json_element, policy, resource, template
from hmmscope.reprs import describe
from hmmscope.storage import seals, store
from hmmscope.storage.disk import refuse_special
from hmmscope.text import in_digits


def write_look(data: dict[str, Any], out: Path) -> Path:
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"out: must end in .html, got {str(out)!r}")
    refuse_special(out)
    store.write_text(out, render_look(data))
    seals.cover(out)
    return out


def render_look(data: dict[str, Any]) -> str:
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
        said=lead(data),
        about=describe(data["about"]),
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


#: Sentences on the effect of training on the belief that a layer holds, by verdict.
_BEYOND = {
    "more": "Training put more of the belief into this layer than untrained networks hold",
    "no more": "This layer holds no more of the belief than untrained networks hold",
    "less": "This layer holds less of the belief than untrained networks hold",
    "not told": "It cannot be determined whether training made this layer hold the belief",
    "nothing": "Because the model has learned nothing, it is unknown whether training made this layer hold the belief",
}
#: Words for an R² of the belief, each with the smallest R² that it describes.
_SIZES = (
    (0.95, "nearly all"),
    (0.8, "most"),
    (0.5, "much"),
    (0.2, "a part"),
    (0.05, "little"),
    (-1e9, "next to nothing"),
)


#: Explanation of untrained controls where a page first mentions them.
_TWINS = "the same architecture with other initial weights"


def described_layer(layer: str) -> str:
    stem, _, number = layer.rpartition(".")
    if stem != "residual" or not number.isdecimal():
        return layer
    return f"{layer}, the {f'output of layer {number}' if int(number) else 'input of the first layer'},"


def lead(data: dict[str, Any]) -> tuple[str, str]:
    if data["invalid"] or data["beliefs"] is None:
        return sentence(data), ""
    *rest, first = re.split(r"(?<=[a-z0-9)\]]\.) (?=[A-Z])", sentence(data))
    return first, " ".join(rest)


def sentence(data: dict[str, Any]) -> str:
    if data["invalid"]:
        return f"INVALID: {data['invalid']}."
    found = [_of_losses(data)]
    learned, beliefs = data["learned"], data["beliefs"]
    nothing = learned is not None and learned["verdict"] == "nothing"
    if nothing:
        found.append(f"The model has learned nothing: its loss is no lower than that of {learned['bar']}.")
    if beliefs is not None:
        size = next(word for least, word in _SIZES if beliefs["r2"] >= least)
        twins = (
            "" if beliefs["twins"] is None else f"; the untrained controls, {_TWINS}, have R² {beliefs['twins']:.3f}"
        )
        found.append(
            f"An affine map of {described_layer(beliefs['best'])} recovers {size} of the belief: R² is "
            f"{beliefs['r2']:.3f} (1 is perfect){twins}."
        )
        beyond = _BEYOND["nothing" if nothing and beliefs["verdict"] == "more" else beliefs["verdict"]]
        found.append(f"{beyond}: {beliefs['text'].removeprefix('not told: ').removeprefix('not identifiable: ')}.")
    return " ".join(filter(None, found))


def _of_losses(data: dict[str, Any]) -> str:
    losses, ahead, unit = {row["role"]: row for row in data["losses"]}, data["ahead"], data["unit"]
    above = losses["model"]["above"]
    which = "" if ahead is None else _ahead(ahead)
    if above is None:
        return f"{which[0].upper()}{which[1:]}." if which else ""
    beside = f"; the best n-gram's is {_told(losses['ngram']['above'])} above the optimum, and {which}" if which else ""
    return f"The model's loss is {_told(above)} {unit} above the exact optimum{beside}."


def _ahead(ahead: dict[str, float]) -> str:
    if ahead["low"] > 0:
        return f"the model's loss is lower than that of the n-gram baseline by {_told(ahead)}"
    if ahead["high"] < 0:
        behind = {key: -ahead[key] for key in ("value", "low", "high")}
        return f"the model's loss is higher than that of the n-gram baseline by {_told(behind)}"
    return f"no difference from the n-gram baseline is detected: the model's loss is lower by {_told(ahead)}"


def _told(number: dict[str, float]) -> str:
    low, high = sorted((number["low"], number["high"]))
    return in_digits(number["value"], low, high, least=3)


#: End of the sentence on a random change that moves predictions away from the target.
_DISTURBED = ", so such a change only disturbs the prediction"


def of_use(data: dict[str, Any]) -> str:
    found, learned = data["used"], data["learned"]
    said = (
        f"In {found['samples']} held-out sequences, at {found['positions']} positions each, {found['layer']} was made "
        f"to encode the belief of another sequence. The model's prediction of the next symbol then moved "
        f"{found['text']} of the way to the Bayes-optimal prediction for that belief (0: no change, 1: all the way, "
        f"below 0: away from it). An equally large change in a random direction moved the prediction "
        f"{found['random_text']} of the way{_DISTURBED if found['random']['high'] < 0 else ''}."
    )
    if learned is not None and learned["verdict"] == "nothing":
        return said
    if found["low"] <= max(0.0, found["random"]["high"]):
        return f"{said} So there is no evidence that the model uses the belief."
    return f"{said} So the model uses the encoded belief{'' if found['value'] >= 0.5 else ', in part'}."
