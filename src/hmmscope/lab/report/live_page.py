"""The live page: a trained model and its ideal observer, computed in the reader's browser; one file, no network."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from hmmscope import __version__
from hmmscope.lab.report.page import LIVE_SCRIPTS, is_triangular, json_element, policy, resource, template
from hmmscope.lab.report.wording import format_number
from hmmscope.storage import seals, store


def write_live_page(data: dict[str, Any], out: Path) -> Path:
    """Write the page of what `hmmscope.runs.live.live_data` gave to `out`, at once and whole; returns `out`."""
    scripts = [resource(name) for name in (*LIVE_SCRIPTS, "theme.js", "live/start.js")]
    page = template("live/explore.html.j2").render(
        data=data,
        triangular=is_triangular(data),
        about=about_text(data),
        version=__version__,
        style=Markup(resource("base.css") + resource("live/explore.css")),
        policy=policy(scripts),
        payload=Markup(json_element(data)),
        scripts=[Markup(script) for script in scripts],
    )
    store.write_text(Path(out), page)
    seals.cover(Path(out))
    return Path(out)


def about_text(data: dict[str, Any]) -> str:
    """What the network is, and how far from the optimum it stands."""
    model, process = data["model"], data["process"]
    layers = f"{model['layers']} {'layer' if model['layers'] == 1 else 'layers'}"
    steps = f"{model['steps']:,} step{'s' * (model['steps'] != 1)}"
    what = f"{model['name']}, {layers}, {format_number(model['parameters'])} parameters"
    source = f" ({process['source']})" if process["source"] else ""
    excess = (
        "" if data["excess"] is None else f"; on held-out samples {data['excess']:.4f} nats a symbol above the optimum"
    )
    return (
        f"The network: {what}, trained for {steps} on symbols of {process['title'] or 'a process'}{source}"
        f"{excess}. The maps from its layers to the belief are linear, fitted on samples of their own; R² is the share of "
        "the belief's variance that they explain on further samples, beside the mean of untrained networks of this kind."
    )
