"""What a process is, for who reads its name for the first time: in words, and by its matrices where they are few."""

from typing import Any

from hmmscope.processes.answers import COMPONENTS, STATES
from hmmscope.processes.process import Process
from hmmscope.text import in_brief
from hmmscope.ties import steady

#: States and symbols whose probabilities are listed, moves that a cell lists, and the least probability in it.
MOST_STATES, MOST_SYMBOLS, MOST_MOVES, LEAST = 8, 6, 4, 0.005


def explained(process: Process) -> dict[str, Any]:
    """Sentences about a process, and a table of its states; the table is None where it is too large, or there is none.

    The table has a row for each state: what it emits and where it goes, or of a process whose moves emit, where it goes
    with each symbol. Probabilities below `LEAST` are left out, and the page says so.
    """
    words = [process.about] if process.about else []
    counted = f"{_count(process.num_states, 'hidden state')} and {_count(process.num_symbols, 'symbol')}"
    if process.real_valued:
        words.append(f"Its observations are vectors of {_count(process.num_symbols, 'number')}.")
    elif process.data is not None:
        words.append(f"Given sequences of {_count(process.num_symbols, 'symbol')}, whose law nobody knows.")
    elif COMPONENTS in process.by_law:
        words.append(
            f"Each sample comes from one of {process.num_components:,} HMMs, its component, drawn before it begins and "
            f"never shown; each has {counted}."
        )
    elif STATES in process.by_law:
        words.append(f"It has {counted}, and only the symbols are shown.")
    table = _table(process) if STATES in process.by_law else None
    return {"words": " ".join(words), "table": table}


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"


def _table(process: Process) -> dict[str, Any] | None:
    states = [in_brief(str(name), 14) for name in process.states or range(process.num_states)]
    symbols = [in_brief(str(name), 14) for name in process.symbols or range(process.num_symbols)]
    if len(states) > MOST_STATES or len(symbols) > MOST_SYMBOLS:
        return None
    law = process.law
    if law.states_emit:
        columns = ["state", "emits", "then goes to"]
        cells = zip(law.emission_MSV[0].tolist(), law.transition_MSS[0].tolist(), strict=True)
        rows = [
            [name, _listed(emits, symbols), _listed(moves, states)]
            for name, (emits, moves) in zip(states, cells, strict=True)
        ]
    else:
        columns = ["state", *(f"emits {symbol}, goes to" for symbol in symbols)]
        by_state = law.labelled_MVSS[0].transpose(0, 1).tolist()
        rows = [[name, *(_listed(moves, states) for moves in by)] for name, by in zip(states, by_state, strict=True)]
    return {"columns": columns, "rows": rows}


def _listed(law: list[float], names: list[str]) -> str:
    """``A .77, B .04``: the likeliest first, of equals in their order; a dash where nothing is possible."""
    found = sorted(((p, -n) for n, p in enumerate(map(steady, law)) if p >= LEAST), reverse=True)
    shown = [f"{names[-n]} {_share(p)}" for p, n in found[:MOST_MOVES]]
    return ", ".join([*shown, *(["…"] if len(found) > MOST_MOVES else [])]) or "–"


def _share(probability: float) -> str:
    return f"{probability:.3f}".rstrip("0").rstrip(".").removeprefix("0") if probability < 0.9995 else "1"
