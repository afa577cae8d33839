"""The verb `explore`: a trained run as a page in which it computes."""

from hmmscope.lab.report.live_page import write_live_page
from hmmscope.lab.verbs.options import Explore
from hmmscope.lab.verbs.pages import page_place
from hmmscope.runs.live import live_data
from hmmscope.runs.pipeline import load_run
from hmmscope.text import say


def explore(options: Explore) -> None:
    """Write the live page of a run."""
    place = page_place(options.out)
    say(f"page: {write_live_page(live_data(load_run(options.run)), place)}")
