"""Symbols as text: the layout that a language model with a tokenizer of its own reads."""

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from itertools import pairwise
from string import ascii_uppercase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.corpora.layouts import MAX_COLUMNS, Layout
from hmmscope.errors import InputError
from hmmscope.schema import require, shown

#: What stands between symbols, by name; any other text does as well.
SEPARATORS = {"spaces": " ", "commas": ", ", "lines": "\n", "nothing": ""}


@dataclass(frozen=True, kw_only=True)
class Text(Layout):
    """One sequence a sample, written as text in the tokens of a tokenizer.

    prefix  name of o_0  separator  name of o_1  separator  ...

    Every name is one token, the same wherever it stands after a separator, and so are the tokens between two names; both
    are found by tokenizing a text with every pair of symbols. What a model says in the column before a name is its law of
    that symbol: the logits of `symbol_tokens` there, which makes probabilities those given that a symbol follows. Names of
    several tokens are refused: the law of the next symbol would take a pass of the model for each beginning of a name.

    Tokens that the tokenizer puts before every text (a first one, say) stand there. Without them and without a prefix
    nothing precedes o_0, which is then not predicted; nor is it where its token differs from the later ones.

    Args:
        tokenizer: a fast one of transformers, or one of the library tokenizers.
        names: of the symbols; or how many, for names of one token each: letters first, then words.
        length: observations a sample.
        separator: between names: "spaces", "commas", "lines", "nothing", or any other text.
        prefix: before the first name.

    Attributes:
        symbol_tokens: token of each symbol.
        first_tokens: the same at the beginning of the text.
        head, gap: tokens before the first name, and between two names.
        vocabulary: tokens that the tokenizer knows.

    Raises:
        InputError: a tokenizer that says no places of its tokens; names that are not one token each, or not always the
            same one; fewer such names than symbols.
    """

    tokenizer: InitVar[Any]
    names: Sequence[str] | int
    length: int = 256
    separator: str = "spaces"
    prefix: str = ""
    symbol_tokens: tuple[int, ...] = field(init=False)
    first_tokens: tuple[int, ...] = field(init=False)
    head: tuple[int, ...] = field(init=False)
    gap: tuple[int, ...] = field(init=False)
    vocabulary: int = field(init=False)

    def __post_init__(self, tokenizer: Any) -> None:
        tokenizer = _backend(tokenizer)
        if isinstance(self.names, int):
            require(self.names >= 1, "names", "must be at least 1", self.names)
            names = _names(tokenizer, self.names, self._between, self.prefix)
        else:
            names = tuple(self.names)
            different = len(names) == len(set(names)) > 0 and all(isinstance(name, str) and name for name in names)
            require(different, "names", "must be different texts", names)
        tokens, gap = _read_pairs(tokenizer, names, self._between, self.prefix)
        begun = [_read(tokenizer, [name, names[0]], self._between, self.prefix) for name in names]
        require(len({read.head for read in begun}) == 1, "prefix", "must end where a token ends", self.prefix)
        first = tuple(read.names[0] for read in begun)
        found = {"names": names, "symbol_tokens": tokens, "first_tokens": first, "head": begun[0].head, "gap": gap}
        for name, value in (found | {"vocabulary": tokenizer.get_vocab_size()}).items():
            object.__setattr__(self, name, value)
        most = (MAX_COLUMNS - len(begun[0].head)) // (1 + len(gap))
        require(1 <= self.length <= most, "length", f"must be in [1, {most}]", self.length)

    @property
    def _between(self) -> str:
        return SEPARATORS.get(self.separator, self.separator)

    @property
    def has_delimiter(self) -> bool:
        return False

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        return (self.length,)

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """(T,): token column of the name of observation t."""
        return len(self.head) + (1 + len(self.gap)) * np.arange(self.length)

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """Numbers t of the observations that a model predicts."""
        first_too = self.head and self.first_tokens == self.symbol_tokens
        return np.arange(0 if first_too else 1, self.length)

    def num_tokens(self, num_symbols: int) -> int:
        """Size of the tokenizer's vocabulary."""
        return self.vocabulary

    def tokens(
        self, observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"], num_symbols: int
    ) -> Int64[Tensor, "batch column"]:
        """The tokens of the text."""
        if observations.is_floating_point():
            raise InputError("process: has vectors, which have no names")
        require(num_symbols <= len(self.symbol_tokens), "names", f"must be {num_symbols}, one a symbol", self.names)
        table = torch.tensor([self.symbol_tokens, self.first_tokens], device=observations.device)
        later = table[0][observations[:, 1:]]
        gaps = later.new_tensor(self.gap).expand(*later.shape, -1)
        head = later.new_tensor(self.head).expand(len(later), -1)
        rest = torch.cat([gaps, later[..., None]], 2).flatten(1)
        return torch.cat([head, table[1][observations[:, :1]], rest], 1)

    def text(self, observations: Sequence[int] | Int64[Tensor, "time"]) -> str:
        """What is read of some observations."""
        assert not isinstance(self.names, int)
        return self.prefix + self._between.join(self.names[int(symbol)] for symbol in observations)


def _backend(tokenizer: Any) -> Any:
    """The tokenizer of the library tokenizers."""
    found = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not all(hasattr(found, name) for name in ("encode", "get_vocab_size", "id_to_token")):
        rule = "must say where its tokens stand; give a fast one of transformers, or a tokenizers.Tokenizer"
        raise InputError(f"tokenizer: {rule}, got {shown(tokenizer)}")
    return found


@dataclass(frozen=True)
class _Read:
    """Tokens of a text: before the first name, of each name, and between each two."""

    head: tuple[int, ...]
    names: tuple[int, ...]
    gaps: tuple[tuple[int, ...], ...]


def _read(tokenizer: Any, names: Sequence[str], between: str, prefix: str) -> _Read:
    """InputError where a name is not one token of its own."""
    encoded = tokenizer.encode(prefix + between.join(names))
    columns: list[int] = []
    begin = len(prefix)
    for name in names:
        first, last = (encoded.char_to_token(place) for place in (begin, begin + len(name) - 1))
        if first is None or first != last or (columns and first == columns[-1]):
            pieces = encoded.tokens[max(0, (first or 0) - 1) : (last or first or 0) + 2]
            advice = "choose other names or another separator; names as a number lets hmmscope choose"
            raise InputError(
                f"names: {name!r} is not one token of its own here, {' '.join(map(repr, pieces))}; {advice}"
            )
        columns.append(first)
        begin += len(name) + len(between)
    ids = encoded.ids
    gaps = tuple(tuple(ids[a + 1 : b]) for a, b in pairwise(columns))
    return _Read(tuple(ids[: columns[0]]), tuple(ids[c] for c in columns), gaps)


def _read_pairs(
    tokenizer: Any, names: Sequence[str], between: str, prefix: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The token of each name after another one, and the tokens between names, by a text with every pair of names."""
    walk = [name for one in names for other in names for name in (one, other)]
    found = _read(tokenizer, walk, between, prefix)
    by_name: dict[str, int] = {}
    for name, token in zip(walk[1:], found.names[1:], strict=True):
        if by_name.setdefault(name, token) != token:
            raise InputError(f"names: the token of {name!r} depends on what stands before it; choose another name")
    tokens = tuple(by_name[name] for name in names)
    require(len(set(tokens)) == len(tokens), "names", "must have tokens of their own", names)
    require(len(set(found.gaps)) == 1, "separator", "must have the same tokens between all names", between)
    return tokens, found.gaps[0]


def _names(tokenizer: Any, count: int, between: str, prefix: str) -> tuple[str, ...]:
    """Names of one token each, with the same tokens between them: letters, then words in the order of the vocabulary."""
    found: dict[tuple[int, ...], dict[int, str]] = {}
    for name in _candidates(tokenizer):
        try:
            read = _read(tokenizer, [name] * 3, between, prefix)
        except InputError:
            continue
        alike = found.setdefault(read.gaps[0], {})
        if len(set(read.gaps)) == len(set(read.names[1:])) == 1:
            alike.setdefault(read.names[1], name)
        if len(alike) == count:
            return tuple(alike.values())
    most = max((len(alike) for alike in found.values()), default=0)
    raise InputError(f"names: the tokenizer has {most} letters and words of one token, {count} are asked for")


def _candidates(tokenizer: Any) -> Iterator[str]:
    yield from ascii_uppercase
    for token in range(tokenizer.get_vocab_size()):
        name = (tokenizer.id_to_token(token) or "").lstrip("\u0120\u2581")  # how a space before a word is written
        if name.isascii() and name.isalnum() and not (len(name) == 1 and name.isupper()):
            yield name
