"""The verb `show`."""

from hmmscope.lab.verbs.catalogue import KINDS, listed, meaning
from hmmscope.lab.verbs.options import ShowOptions
from hmmscope.text import say


def show(options: ShowOptions) -> None:
    if options.name is None or options.name in KINDS:
        for plural in KINDS if options.name is None else (options.name,):
            say(listed(plural), end="")
    else:
        meaning(options.name)
