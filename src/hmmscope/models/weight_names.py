"""Names of weights in plain modules, and in modules with wrappers such as torch.compile."""

from collections.abc import Collection, Iterable, Iterator

#: Parts of names that wrappers add.
_WRAPPERS = frozenset(
    (
        *("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_original_module"),
        "_original",
    )
)


def plain_name(name: str) -> str:
    """Return a name without the parts that torch.compile, FSDP, checkpointing and Fabric add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def matched(own: Collection[str], found: Collection[str]) -> dict[str, str] | None:
    ours, theirs = ({plain_name(name): name for name in names} for names in (own, found))
    for short in _shortened(ours):
        for other in _shortened(theirs):
            if short.keys() == other.keys() and (len(short), len(other)) == (len(own), len(found)):
                return {name: other[key] for key, name in short.items()}
    return None


def _shortened(names: dict[str, str]) -> Iterator[dict[str, str]]:
    yield names
    while _shared(names):
        names = {key.partition(".")[2]: name for key, name in names.items()}
        yield names


def _shared(names: Iterable[str]) -> bool:
    firsts = {name.partition(".")[0] if "." in name else None for name in names}
    return len(firsts) == 1 and None not in firsts
