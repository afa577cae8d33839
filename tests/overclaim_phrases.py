"""What praises a network: sentences that say that it holds or learned something."""

import re
from collections.abc import Iterator

#: What is said of whoever learned something.
PRAISE = re.compile(
    r"\b(learn(s|ed|t)|begun to learn|knows?|holds?|can be (read|decoded)|put\b.*\binto|tracks?|has found|recognis\w+"
    r"|understands?|retrieves?|beats|reproduced|(?<!no )better|more than before)\b"
)
#: In the same sentence: it is not so, or not told, or a rule is explained.
DENIED = re.compile(
    r"\b(no|not|nothing|never|neither|nobody|whether|untrained|before training|twins|would|who|what|where|how|if"
    r"|than those of)\b",
    re.IGNORECASE,
)
#: What praises whatever stands beside it.
ALWAYS = re.compile(r"(?<!no )more than (before|from)|\bput more\b")


def sentences(text: str) -> Iterator[str]:
    """What stands between full stops, line by line."""
    for line in text.splitlines():
        yield from (one.strip() for one in re.split(r"(?<=[.!?])\s+(?=[A-Z*])", line) if one.strip())


def praise(text: str) -> list[str]:
    """The sentences that praise a network."""
    return [one for one in sentences(text) if ALWAYS.search(one) or (PRAISE.search(one) and not DENIED.search(one))]
