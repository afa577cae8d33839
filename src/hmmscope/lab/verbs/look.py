"""The verb `look`."""

from hmmscope.analysis.untrained_controls import InstrumentOptions
from hmmscope.lab.model_file import kept_running
from hmmscope.lab.model_page.model_page import look as look_at
from hmmscope.lab.verbs.models import load_model, trained_by
from hmmscope.lab.verbs.options import LookOptions
from hmmscope.lab.verbs.pages import page_place
from hmmscope.text import say


@kept_running()
def look(options: LookOptions) -> None:
    """Write the model page of a run, of a model in a Hugging Face folder, or of FILE.py:NAME."""
    place = page_place(options.out)
    named = None if options.layers is None else options.layers.split(",")
    loaded, controls = load_model(options.model)
    thing, process = trained_by(loaded, options.process)
    more = InstrumentOptions(controls=controls)
    found = look_at(thing, process, length=options.length, num_samples=options.samples, layers=named, options=more)
    for line in found.warnings:
        say(f"warning: {line}")
    say(f"page: {found.save(place)}")
    if not options.quiet:
        for row in found.losses:
            say(f"{row['value']:.4f} [{row['low']:.4f}, {row['high']:.4f}] {found.data['unit']}  {row['name']}")
        if found.data["beliefs"] is not None:
            say(f"belief in {found.data['beliefs']['best']}: {found.data['beliefs']['text']}")
