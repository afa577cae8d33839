"""Descriptions of a process and of a model in sentences, with a table of the states of a small process."""

from typing import Any

from torch import nn

from hmmscope.models.user_module import unwrapped
from hmmscope.processes.capabilities import COMPONENTS, STATES
from hmmscope.processes.process import Process
from hmmscope.text import in_brief
from hmmscope.ties import steady

#: Most states and most symbols of a process with a table, most transitions in a cell, and least probability in a cell.
MOST_STATES, MOST_SYMBOLS, MOST_MOVES, LEAST = 8, 6, 4, 0.005


def explained(process: Process) -> dict[str, Any]:
    """Return sentences about a process, and a table of its states (or None).

    A row lists the emissions and transitions of a state or, if symbols are emitted on transitions, the next states for
    each symbol. Probabilities below `LEAST` are left out.
    """
    words = [process.about] if process.about else []
    counted = f"{_count(process.num_states, 'hidden state')} and {_count(process.num_symbols, 'symbol')}"
    if process.real_valued:
        words.append(f"Its observations are vectors of {_count(process.num_symbols, 'number')}.")
    elif process.data is not None:
        counted = _count(process.num_symbols, "symbol")
        words.append(f"It consists of recorded sequences over {counted}; the distribution of the sequences is unknown.")
    elif COMPONENTS in process.uses_hmm_inference:
        words.append(
            f"Each sample comes from one of {process.num_components:,} HMMs (components). The component is drawn at "
            f"the start of the sample and is not observed. Each HMM has {counted}."
        )
    elif STATES in process.uses_hmm_inference:
        words.append(f"It has {counted}; only the symbols are observed.")
    table = _table(process) if STATES in process.uses_hmm_inference else None
    return {"words": " ".join(words), "table": table}


#: Sizes of a model, with their names in specs of hmmscope and in configurations of Transformers and TransformerLens.
_SIZES = (
    ("layer", ("num_layers", "num_hidden_layers", "n_layers")),
    ("attention head", ("num_heads", "num_attention_heads", "n_heads")),
    ("width", ("width", "hidden_size", "d_model")),
)
#: Most submodules that the description of a model names.
MOST_PARTS = 6


def architecture(model: nn.Module) -> str:
    model = unwrapped(model)
    number = sum(parameter.numel() for parameter in model.parameters())
    kept = next(
        (found for name in ("spec", "config", "cfg") if (found := getattr(model, name, None)) is not None), None
    )
    kept = getattr(kept, "decoder", kept)
    sizes = [
        (what, next((size for name in names if (size := getattr(kept, name, None))), None)) for what, names in _SIZES
    ]
    told = [f"width {size}" if what == "width" else _count(size, what) for what, size in sizes if isinstance(size, int)]
    if not told:
        parts = [_part(name, part) for name, part in model.named_children()]
        told = [*parts[:MOST_PARTS], *(["…"] if len(parts) > MOST_PARTS else [])]
    return f"{type(model).__name__}: {', '.join([*told, _count(number, 'parameter')])}."


def _part(name: str, part: nn.Module) -> str:
    inner = len(list(part.children()))
    shown = f"{type(part).__name__} of {_count(inner, 'module')}" if inner else in_brief(repr(part), 60)
    return f"{name} = {shown}"


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"


def _table(process: Process) -> dict[str, Any] | None:
    states = [in_brief(str(name), 14) for name in process.states or range(process.num_states)]
    symbols = [in_brief(str(name), 14) for name in process.symbols or range(process.num_symbols)]
    if len(states) > MOST_STATES or len(symbols) > MOST_SYMBOLS:
        return None
    params = process.params
    if params.states_emit:
        columns = ["state", "emits", "then goes to"]
        cells = zip(params.emission_MSV[0].tolist(), params.transition_MSS[0].tolist(), strict=True)
        rows = [
            [name, _listed(emits, symbols), _listed(moves, states)]
            for name, (emits, moves) in zip(states, cells, strict=True)
        ]
    else:
        columns = ["state", *(f"emits {symbol}, goes to" for symbol in symbols)]
        by_state = params.labelled_MVSS[0].transpose(0, 1).tolist()
        rows = [[name, *(_listed(moves, states) for moves in by)] for name, by in zip(states, by_state, strict=True)]
    return {"columns": columns, "rows": rows}


def _listed(law: list[float], names: list[str]) -> str:
    found = sorted(((p, -n) for n, p in enumerate(map(steady, law)) if p >= LEAST), reverse=True)
    shown = [f"{names[-n]} {_share(p)}" for p, n in found[:MOST_MOVES]]
    return ", ".join([*shown, *(["…"] if len(found) > MOST_MOVES else [])]) or "–"


def _share(probability: float) -> str:
    return f"{probability:.3f}".rstrip("0").rstrip(".").removeprefix("0") if probability < 0.9995 else "1"
