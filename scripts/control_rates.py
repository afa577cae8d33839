"""Measure how often `belief_map` reports that a network encodes more of the belief than its untrained controls.

    nice -n 10 python scripts/control_rates.py --measure    measure again, about half an hour of one core
    python scripts/control_rates.py                         print the table of stored counts

Networks of three architectures have six initializations, a sixth of the draws each: torch's defaults, normal matrices with
standard deviation .02 or .1, Xavier, Kaiming and orthogonal matrices; all but the first have zero biases. Each network is
evaluated as by `belief_map`, with controls from a factory and with controls from the module alone.

    untrained   never trained, on Mess3: the verdict "more" is a false positive
    trained     on RRXOR, because untrained networks encode little of its belief. The effect is known to exist if the
                held-out loss closes a quarter of the gap between log 2 and the optimum, and the network explains more of
                the belief on 1024 other samples than 16 other controls from the factory do. Networks that fail the first
                condition are "not learned", those that fail the second "no effect known"

By default the number of controls is that of `belief_map`, and the number of samples a sixth of its default. The numbers of
draws are fixed in advance, and partial measurements are not stored. Bounds are the inner ends of one-sided 95 %
Clopper-Pearson intervals, pooled over initializations. Counts are in results/control-rates/.
"""

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta
from torch import nn

import hmmscope as hs
from hmmscope.analysis.activations import layers_read
from hmmscope.analysis.belief_map import NUM_CONTROLS
from hmmscope.analysis.geometry import ExactBeliefs, Readout
from hmmscope.analysis.untrained_controls import draw_controls
from hmmscope.models.base import seeded_generators
from hmmscope.registry import adapted
from hmmscope.seeds import derived_seed
from hmmscope.storage import seals, store
from hmmscope.system_info import machine_line

KEPT = Path(__file__).resolve().parents[1] / "results" / "control-rates" / "control-rates.json"
LENGTH, SAMPLES = 12, 128
#: Samples and controls of the independent measurement of an effect.
MANY_SAMPLES, MANY_CONTROLS = 1024, 16
#: First seed of the stored measurement. Smaller seeds were used to write this script and to choose `NUM_CONTROLS`.
FIRST = 3000
#: Fraction of the way from log 2 to the optimum at which a network has learned the process.
LEAST_GAIN = 0.25
#: Stored verdict; it is printed as "not identifiable".
UNKNOWN = "not told"
Row = dict[str, Any]


class Transformer(nn.Module):
    """Two layers of torch's TransformerEncoder with a causal mask."""

    def __init__(self, symbols: int, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(symbols, width), nn.Embedding(LENGTH, width)
        layer = partial(nn.TransformerEncoderLayer, width, 2, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([layer(), layer()])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        size = tokens.shape[1]
        mask = torch.ones(size, size, dtype=torch.bool).triu(1)
        x = self.tokens(tokens) + self.positions(torch.arange(size))
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(self.norm(x))


class LSTM(nn.Module):
    """An embedding, one layer, a head."""

    def __init__(self, symbols: int, width: int = 8) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(symbols, width), nn.Linear(width, symbols)
        self.layer = nn.LSTM(width, width, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.tokens(tokens))[0])


class MLP(nn.Module):
    """Two hidden layers over a window of the last symbols."""

    def __init__(self, symbols: int, width: int = 16, window: int = 6) -> None:
        super().__init__()
        self.window, self.symbols = window, symbols
        self.tokens, self.head = nn.Embedding(symbols + 1, width), nn.Linear(width, symbols)
        self.layers = nn.ModuleList([nn.Linear(window * width, width), nn.Linear(width, width)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        seen = nn.functional.pad(tokens, (self.window - 1, 0), value=self.symbols).unfold(1, self.window, 1)
        x = self.tokens(seen).flatten(2)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


#: Builder of each network from a number of symbols, and the layers to read; None reads the residual stream.
KINDS: dict[str, tuple[Callable[[int], nn.Module], list[str] | None]] = {
    "transformer": (Transformer, None),
    "lstm": (LSTM, None),
    "mlp": (MLP, ["layers.1"]),
}
INITIALIZATIONS: dict[str, Callable[[torch.Tensor], Any] | None] = {
    "default": None,
    "normal .02": lambda weight: nn.init.normal_(weight, 0, 0.02),
    "normal .1": lambda weight: nn.init.normal_(weight, 0, 0.1),
    "xavier": nn.init.xavier_uniform_,
    "kaiming": nn.init.kaiming_normal_,
    "orthogonal": nn.init.orthogonal_,
}


def made(kind: str, initialization: str, symbols: int) -> nn.Module:
    """Return an untrained network with weights from torch's global generator."""
    model, draw = KINDS[kind][0](symbols), INITIALIZATIONS[initialization]
    if draw is not None:
        for part in model.modules():
            for weight in [] if isinstance(part, nn.LayerNorm) else part.parameters(recurse=False):
                draw(weight) if weight.ndim > 1 else nn.init.zeros_(weight)
    return model


def trained(model: nn.Module, corpus: hs.ProcessDataset, steps: int) -> nn.Module:
    """Train the network with `steps` steps of Adam on fresh samples and return it."""
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    observations = corpus[0 : 32 * steps].observations
    for seen in observations.split(32):
        logits = model(seen[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), seen[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model.eval()


def has_learned(model: nn.Module, process: hs.Process) -> bool:
    """Return whether the loss closes `LEAST_GAIN` of the gap between log 2 and the optimum, on otherwise unused samples."""
    score = hs.evaluate(
        model, hs.ProcessDataset(process, length=LENGTH, stream="evaluate"), num_samples=256, baselines=False
    )
    return math.log(2) - score.loss >= LEAST_GAIN * (math.log(2) - score.bayes_loss)


def read(network: nn.Module, kind: str, exact: ExactBeliefs) -> Readout:
    layers = KINDS[kind][1]
    tapped = adapted(network, layers)
    return exact.read(exact.stream(tapped, layers_read(tapped, layers)))


def verdicts(
    model: nn.Module, kind: str, initialization: str, exact: ExactBeliefs, number: int, num_controls: int
) -> Iterator[tuple[str, str]]:
    """Yield the verdicts of `belief_map` on one network, with a factory of controls and without one."""
    own = read(model, kind, exact)
    for way, controls in (
        ("factory", partial(made, kind, initialization, exact.dataset.num_symbols)),
        ("module alone", None),
    ):
        twins = draw_controls(model, num_controls, seed=number, controls=controls).models
        yield way, own.beyond([read(twin, kind, exact) for twin in twins]).verdict if twins else UNKNOWN


def effect_known(model: nn.Module, kind: str, initialization: str, process: hs.Process, number: int) -> bool:
    """Return whether the network explains more than its controls, on otherwise unused samples and controls."""
    dataset = hs.ProcessDataset(process, length=LENGTH, seed=number, stream="test")
    exact, factory = ExactBeliefs.of(dataset, MANY_SAMPLES), partial(made, kind, initialization, dataset.num_symbols)
    twins = draw_controls(model, MANY_CONTROLS, seed=number + 10**6, controls=factory).models
    return read(model, kind, exact).beyond([read(twin, kind, exact) for twin in twins]).verdict == "more"


def judged(
    networks: str, kind: str, initialization: str, exact: ExactBeliefs, number: int, steps: int, num_controls: int
) -> Iterator[Row]:
    """Make one network, train it if asked, and yield its verdicts."""
    process, symbols = exact.dataset.process, exact.dataset.num_symbols
    with seeded_generators(derived_seed(1000 * list(INITIALIZATIONS).index(initialization) + number, "controls")):
        model = made(kind, initialization, symbols)
    if networks == "trained":
        trained(model, hs.ProcessDataset(process, length=LENGTH, seed=number, stream="train"), steps)
        networks = "trained" if has_learned(model, process) else "not learned"
        if networks == "trained" and not effect_known(model, kind, initialization, process, number):
            networks = "no effect known"
    for way, verdict in verdicts(model, kind, initialization, exact, number, num_controls):
        yield {"networks": networks, "kind": kind, "way": way, "initialization": initialization, "verdict": verdict}


def measure(draws: int, trainings: int, steps: int, first: int, num_controls: int) -> dict[str, Any]:
    """Count verdicts by network, architecture, source of controls, and initialization."""
    begun, counts = time.process_time(), Counter[tuple[tuple[str, str], ...]]()
    for networks, rounds, process in (("untrained", draws, "mess3"), ("trained", trainings, "rrxor")):
        for number in range(first, first + rounds // len(INITIALIZATIONS)):
            dataset = hs.ProcessDataset(hs.make_process(process), length=LENGTH, seed=number, stream="probe")
            exact = ExactBeliefs.of(dataset, SAMPLES)
            for kind, initialization in product(KINDS, INITIALIZATIONS):
                for row in judged(networks, kind, initialization, exact, number, steps, num_controls):
                    counts[tuple(row.items())] += 1
            print(f"{networks} {number}: {time.process_time() - begun:.0f} s", file=sys.stderr, flush=True)
    about = {
        "made": date.today().isoformat(),
        "machine": machine_line(),
        "steps": steps,
        "first_seed": first,
        "controls": num_controls,
    }
    about |= {"draws": draws, "trainings": trainings, "seconds": round(time.process_time() - begun)}
    found = about | {"rows": [dict(key) | {"count": n} for key, n in sorted(counts.items())]}
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    store.write_json(KEPT, found)
    seals.keep(KEPT.parent, [KEPT.name])
    return found


def table(found: dict[str, Any]) -> Iterator[str]:
    """Yield lines by architecture and source of controls: share of "more" with its bound, and of "not identifiable"."""
    about = f"{found['seconds']} s of one core, {found['steps']} steps of training, {found.get('controls', 3)} controls"
    yield f"{found['made']}, {found['machine']}, {about}"
    for which, kind, way in product(
        ("untrained", "trained", "no effect known", "not learned"), KINDS, ("factory", "module alone")
    ):
        rows = [row for row in found["rows"] if (row["networks"], row["kind"], row["way"]) == (which, kind, way)]
        if not rows:
            continue
        total = sum(row["count"] for row in rows)
        more, unknown = (sum(row["count"] for row in rows if row["verdict"] == one) for one in ("more", UNKNOWN))
        low, high = float(beta.ppf(0.05, more, total - more + 1)) if more else 0.0, upper_bound(more, total)
        bound = {"untrained": f", at most {high:.3f}", "trained": f", at least {low:.3f}"}.get(which, "")
        yield f"{which:15} {kind:11} {way:12} more {more} of {total} ({more / total:.3f}{bound}), not identifiable {unknown}"


def upper_bound(count: int, total: int) -> float:
    """Return the upper end of the one-sided 95 % Clopper-Pearson interval."""
    return 1.0 if count == total else float(beta.ppf(0.95, count + 1, total - count))


def main() -> None:
    """Measure and store the counts, or print the stored ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure again and store the counts")
    parser.add_argument(
        "--draws", type=int, default=990, help="number of untrained networks of each architecture, a multiple of 6"
    )
    parser.add_argument(
        "--trainings", type=int, default=36, help="number of trained networks of each architecture, a multiple of 6"
    )
    parser.add_argument("--steps", type=int, default=1000, help="number of steps of each training")
    parser.add_argument("--first", type=int, default=FIRST, help="first seed")
    parser.add_argument(
        "--controls", type=int, default=NUM_CONTROLS, help="number of untrained controls of each network"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = (options.draws, options.trainings, options.steps, options.first, options.controls)
    print("\n".join(table(measure(*sizes) if options.measure else store.read_json(KEPT))))


if __name__ == "__main__":
    main()
