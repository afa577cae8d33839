"""Text layouts, for language models that have their own tokenizer."""

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from itertools import pairwise
from string import ascii_uppercase
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.datasets.layouts import MAX_COLUMNS, Layout
from hmmscope.errors import InputError
from hmmscope.schema import require, require_count, shown

#: Named separators; any other text is allowed.
SEPARATORS = {"spaces": " ", "commas": ", ", "lines": "\n", "nothing": ""}


@dataclass(frozen=True, kw_only=True)
class TextLayout(Layout):
    """One sequence per sample, optionally after demonstrations, as tokenized text.

    The text is the prefix, then names with separators between them, and delimiters between sequences. Symbol names and
    separators must give the same tokens in every context. At the token before a name, the logits of `symbol_tokens`
    give the symbols' probabilities. An observation that is the first token is not predicted.

    Args:
        tokenizer: fast tokenizer of transformers, or a tokenizer of the package tokenizers.
        names: names of the symbols, or their number (the layout chooses names).
        length: number of observations of the last sequence.
        separator: text between names: "spaces", "commas", "lines", "nothing", or any other text.
        prefix: text before the first name.
        num_demonstrations: number of sequences before the last one.
        demonstration_length: number of observations of each demonstration.
        delimiter: text between sequences, with the same values as `separator`.

    Attributes:
        symbol_tokens: token of each symbol.
        first_tokens, start_tokens: token of each symbol at the start of the text, and after a delimiter.
        head, gap, turn: tokens before the first name, between names, and between sequences.
        vocabulary: number of tokens of the tokenizer.

    Raises:
        InputError: the tokenizer reports no character offsets, a name is not always one token, or names are too few.
    """

    digest_name: ClassVar[str] = "Text"

    tokenizer: InitVar[Any]
    names: Sequence[str] | int
    length: int = 256
    separator: str = "spaces"
    prefix: str = ""
    num_demonstrations: int = 0
    demonstration_length: int = 8
    delimiter: str = "lines"
    symbol_tokens: tuple[int, ...] = field(init=False)
    first_tokens: tuple[int, ...] = field(init=False)
    start_tokens: tuple[int, ...] = field(init=False)
    head: tuple[int, ...] = field(init=False)
    gap: tuple[int, ...] = field(init=False)
    turn: tuple[int, ...] = field(init=False)
    vocabulary: int = field(init=False)

    def __post_init__(self, tokenizer: Any) -> None:
        tokenizer = _backend(tokenizer)
        if isinstance(self.names, int):
            require_count("names", self.names)
            names = _names(tokenizer, self.names, self._between, self.prefix)
        else:
            names = tuple(self.names)
            different = len(names) == len(set(names)) > 0 and all(isinstance(name, str) and name for name in names)
            require(different, "names", "must be different non-empty strings", names)
        between, turn_text = self._between, SEPARATORS.get(self.delimiter, self.delimiter)
        begun = [_read(tokenizer, [name, names[0]], between, self.prefix) for name in names]
        require(len({read.head for read in begun}) == 1, "prefix", "must not share a token with a name", self.prefix)
        first = tuple(read.names[0] for read in begun)
        require_count("num_demonstrations", self.num_demonstrations, 0)
        if self.num_demonstrations:
            require_count("demonstration_length", self.demonstration_length)
            require(turn_text != between, "delimiter", "must differ from the separator", self.delimiter)
            start, tokens, turn, gap = _read_turns(tokenizer, names, between, turn_text, self.prefix)
        else:
            tokens, gap = _read_pairs(tokenizer, names, between, self.prefix)
            start, turn = tokens, gap
        found = {"names": names, "symbol_tokens": tokens, "first_tokens": first, "start_tokens": start}
        found |= {"head": begun[0].head, "gap": gap, "turn": turn, "vocabulary": tokenizer.get_vocab_size()}
        for name, value in found.items():
            object.__setattr__(self, name, value)
        require_count("length", self.length)
        columns = len(self.head) + sum(self.sequence_lengths) * (1 + max(len(gap), len(turn)))
        require(columns <= MAX_COLUMNS, "length", f"must give at most {MAX_COLUMNS} tokens", columns)

    @property
    def _between(self) -> str:
        return SEPARATORS.get(self.separator, self.separator)

    @property
    def has_delimiter(self) -> bool:
        return False

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        return (self.demonstration_length,) * self.num_demonstrations + (self.length,)

    @cached_property
    def token_positions(self) -> NDArray[np.int64]:
        before = np.where(self.reset_mask, len(self.turn), len(self.gap))
        before[0] = len(self.head)
        return np.cumsum(1 + before) - 1

    @cached_property
    def predicted_observations(self) -> NDArray[np.int64]:
        kept = ~self.reset_mask | (self.start_tokens == self.symbol_tokens)
        kept[0] = bool(self.head) and self.first_tokens == self.symbol_tokens
        return np.flatnonzero(kept)

    def vocab_size(self, num_symbols: int) -> int:
        return self.vocabulary

    def tokens(
        self,
        observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"],
        num_symbols: int,
        header: Tensor | None = None,
    ) -> Int64[Tensor, "batch column"]:
        if observations.is_floating_point():
            raise InputError("process: must have symbols for a text layout, got vectors")
        require(num_symbols <= len(self.symbol_tokens), "names", f"need {num_symbols}, one per symbol", self.names)
        device, reset_mask = observations.device, torch.from_numpy(self.reset_mask)
        tables = torch.tensor([self.symbol_tokens, self.start_tokens, self.first_tokens], device=device)
        kinds = reset_mask.long()
        kinds[0] = 2
        between = [self.turn if begun else self.gap for begun in self.reset_mask[1:].tolist()]
        row = [*self.head, 0, *(token for tokens in between for token in (*tokens, 0))]
        found = torch.tensor(row, device=device).repeat(len(observations), 1)
        found[:, torch.from_numpy(self.token_positions).to(device)] = tables[kinds.to(device), observations]
        return found

    def text(self, observations: Sequence[int] | Int64[Tensor, " time"]) -> str:
        """Return the text of `observations`, which begin a sample."""
        assert not isinstance(self.names, int)
        turn = SEPARATORS.get(self.delimiter, self.delimiter)
        words = [self.names[int(symbol)] for symbol in observations]
        before = ["", *(turn if begun else self._between for begun in self.reset_mask[1:].tolist())]
        return self.prefix + "".join(gap + word for gap, word in zip(before, words, strict=False))


def _backend(tokenizer: Any) -> Any:
    found = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not all(hasattr(found, name) for name in ("encode", "get_vocab_size", "id_to_token")):
        rule = "must report character offsets; use a fast tokenizer of transformers, or a tokenizers.Tokenizer"
        raise InputError(f"tokenizer: {rule}, got {shown(tokenizer)}")
    return found


@dataclass(frozen=True)
class _Read:
    head: tuple[int, ...]
    names: tuple[int, ...]
    gaps: tuple[tuple[int, ...], ...]


def _read(tokenizer: Any, names: Sequence[str], *between: str) -> _Read:
    *turns, prefix = between
    gaps = [turns[number % len(turns)] for number in range(len(names) - 1)]
    encoded = tokenizer.encode(prefix + "".join(name + gap for name, gap in zip(names, [*gaps, ""], strict=True)))
    columns: list[int] = []
    begin = len(prefix)
    for name, gap in zip(names, [*gaps, ""], strict=True):
        first, last = (encoded.char_to_token(place) for place in (begin, begin + len(name) - 1))
        if first is None or first != last or (columns and first == columns[-1]):
            pieces = encoded.tokens[max(0, (first or 0) - 1) : (last or first or 0) + 2]
            advice = "choose other names or another separator, or pass only the number of names"
            raise InputError(f"names: {name!r} must be a single token, got {' '.join(map(repr, pieces))}; {advice}")
        columns.append(first)
        begin += len(name) + len(gap)
    ids = encoded.ids
    found = tuple(tuple(ids[a + 1 : b]) for a, b in pairwise(columns))
    return _Read(tuple(ids[: columns[0]]), tuple(ids[c] for c in columns), found)


def _read_pairs(
    tokenizer: Any, names: Sequence[str], between: str, prefix: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    walk = [name for one in names for other in names for name in (one, other)]
    found = _read(tokenizer, walk, between, prefix)
    return _tokens(names, walk[1:], found.names[1:]), _same(found.gaps, "separator", between)


def _read_turns(
    tokenizer: Any, names: Sequence[str], between: str, turn: str, prefix: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    walk = [name for one in names for other in names for name in (one, other)]
    pairs, other = _read(tokenizer, walk, turn, between, prefix), _read(tokenizer, walk, between, turn, prefix)
    started = _tokens(names, [*walk[1::2], *walk[2::2]], [*pairs.names[1::2], *other.names[2::2]])
    followed = _tokens(names, [*walk[2::2], *walk[1::2]], [*pairs.names[2::2], *other.names[1::2]])
    turns, gaps = [*pairs.gaps[::2], *other.gaps[1::2]], [*pairs.gaps[1::2], *other.gaps[::2]]
    return started, followed, _same(turns, "delimiter", turn), _same(gaps, "separator", between)


def _tokens(names: Sequence[str], read: Sequence[str], tokens: Sequence[int]) -> tuple[int, ...]:
    by_name: dict[str, int] = {}
    for name, token in zip(read, tokens, strict=True):
        if by_name.setdefault(name, token) != token:
            raise InputError(f"names: the token of {name!r} depends on the text before it; choose another name")
    found = tuple(by_name[name] for name in names)
    require(len(set(found)) == len(found), "names", "must have different tokens", names)
    return found


def _same(gaps: Sequence[tuple[int, ...]], field: str, text: str) -> tuple[int, ...]:
    require(len(set(gaps)) == 1, field, "must give the same tokens between any two names", text)
    return gaps[0]


def _names(tokenizer: Any, count: int, between: str, prefix: str) -> tuple[str, ...]:
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
    raise InputError(f"names: {count} are needed, but the tokenizer has only {most} letters and words as single tokens")


def _candidates(tokenizer: Any) -> Iterator[str]:
    yield from ascii_uppercase
    for token in range(tokenizer.get_vocab_size()):
        name = (tokenizer.id_to_token(token) or "").lstrip("\u0120\u2581")  # markers of a space before a word
        if name.isascii() and name.isalnum() and not (len(name) == 1 and name.isupper()):
            yield name
