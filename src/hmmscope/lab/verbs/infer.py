"""The verb `infer`: exact answers of a process, about itself or about given sequences."""

from dataclasses import fields

from hmmscope.errors import InputError
from hmmscope.lab.verbs.facts import facts
from hmmscope.lab.verbs.options import OF_PROCESS, OF_SEQUENCES, READING, InferOptions
from hmmscope.lab.verbs.sequence_answers import oracle


def infer(options: InferOptions) -> None:
    """Say what follows from the matrices; or with sequences what an ideal observer of the process makes of them."""
    groups = {one.name: one.metadata.get("group") for one in fields(InferOptions)}
    for name in options.beyond_defaults():
        flag = f"--{name.replace('_', '-')}"
        if options.observations is None and groups[name] in (OF_SEQUENCES, READING):
            raise InputError(f"{flag}: is asked of sequences; give a file of them after the process")
        if options.observations is not None and groups[name] == OF_PROCESS:
            raise InputError(f"{flag}: is asked of the process itself; leave the file of sequences out")
    (facts if options.observations is None else oracle)(options)
