"""The verb `infer`."""

from dataclasses import fields

from hmmscope.errors import InputError
from hmmscope.lab.verbs.facts import facts
from hmmscope.lab.verbs.options import OF_PROCESS, OF_SEQUENCES, READING, InferOptions
from hmmscope.lab.verbs.sequence_answers import oracle


def infer(options: InferOptions) -> None:
    groups = {one.name: one.metadata.get("group") for one in fields(InferOptions)}
    for name in options.beyond_defaults():
        flag = f"--{name.replace('_', '-')}"
        if options.observations is None and groups[name] in (OF_SEQUENCES, READING):
            raise InputError(f"{flag}: applies to sequences; give a file of sequences after the process")
        if options.observations is not None and groups[name] == OF_PROCESS:
            raise InputError(f"{flag}: applies to the process only; leave out the file of sequences")
    (facts if options.observations is None else oracle)(options)
