"""Figures 1, 2 and 7 of [MultiTask]: their claims come out each way, and their measurements are right where known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hmmscope import registry
from hmmscope.analysis.curves import Score
from hmmscope.claims.old import Judgement, Tables
from hmmscope.constructions.multitask import multitask_theorem1
from hmmscope.corpora.corpus import Corpus
from hmmscope.corpora.layouts import Prompts
from hmmscope.experiments import multitask_fig1 as fig1
from hmmscope.experiments import multitask_fig2 as fig2
from hmmscope.experiments import multitask_fig7 as fig7
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.processes.random_hmm import RandomMixtureSpec

PROMPTS = Prompts(num_demonstrations=3, demonstration_length=5, test_length=6)
SPEC = RandomMixtureSpec(num_components=3, num_states=3, num_symbols=4, emission_concentration=0.1)


def judged(name: str, tables: Tables) -> Judgement:
    found: Judgement = registry.lookup("claim", name).judge(tables)
    return found


def seeded(values: Sequence[float], **fields: Any) -> list[dict]:
    return [{"seed": seed, "value": value, "low": value, "high": value} | fields for seed, value in enumerate(values)]


UP, DOWN, OPEN = (0.3, 0.31, 0.29), (-0.3, -0.31, -0.29), (0.3, -0.3, 0.1)
WAYS = [(UP, "reproduced"), (DOWN, "not reproduced"), (OPEN, "inconclusive")]


# ---------------------------------------------------------------------------------------------------------------------
# Figure 1


def tables_1(**effects: Sequence[float]) -> Tables:
    """Effects by name, blanks as underscores; all others go up."""
    names = ("demonstrations", "length", "length after one", "above order-1", "below the ceiling")
    names += ("loss above the ceiling", "gain over order-1", "gain over retrieval")
    rows = []
    for pool in ("pool", "unseen"):
        for name in names:
            key = name.replace(" ", "_").replace("-", "_")
            values = effects.get(f"{pool}_{key}", effects.get(key, UP))
            rows += seeded(values, effect=name, pool=pool, first_position=4)
    curves = [
        row
        for x in (0, 3)
        for predictor in ("model", "optimum")
        for row in seeded((0.1 + x, 0.2 + x), pool="pool", predictor=predictor, metric="accuracy", x=x)
    ]
    return {"effects": rows, "demonstrations": curves, "positions": curves}


@pytest.mark.parametrize("values, verdict", WAYS)
def test_rises(values: Sequence[float], verdict: str) -> None:
    for name, effect in (("demonstrations", "demonstrations"), ("length", "length")):
        found = judged(f"multitask-accuracy-rises-with-{name}", tables_1(**{effect: values}))
        assert found.verdict == verdict
        assert found.value == pytest.approx(np.mean(values))
    assert (
        "from 0.150 with 0 demonstrations to 3.150 with 3"
        in judged("multitask-accuracy-rises-with-demonstrations", tables_1()).text
    )


@pytest.mark.parametrize(
    "above, below, verdict",
    [
        (UP, UP, "reproduced"),
        (UP, DOWN, "not reproduced"),
        (DOWN, UP, "not reproduced"),
        (OPEN, DOWN, "not reproduced"),
        (UP, OPEN, "inconclusive"),
        (OPEN, UP, "inconclusive"),
    ],
)
def test_ends_in_between(above: Sequence[float], below: Sequence[float], verdict: str) -> None:
    found = judged(
        "multitask-accuracy-between-ngram-and-ceiling", tables_1(above_order_1=above, below_the_ceiling=below)
    )
    assert found.verdict == verdict
    assert found.value == pytest.approx(min(np.mean(above), np.mean(below)))


@pytest.mark.parametrize(
    "pool, unseen, retrieval, words",
    [
        ((0.1, 0.11, 0.1), (0.5, 0.52, 0.5), UP, "It knows its pool, and it estimates in context"),
        ((0.1, 0.11, 0.1), (0.5, 0.52, 0.5), DOWN, "It knows its pool, and what it does beyond the pool is no better"),
        ((0.1, 0.11, 0.1), (0.1, 0.11, 0.1), UP, "That it knows its pool does not show, but it estimates in context"),
        ((0.1, 0.5, 0.1), (0.5, 0.1, 0.1), OPEN, "That it knows its pool does not show, and whether it estimates"),
    ],
)
def test_retrieval_or_estimation(
    pool: Sequence[float], unseen: Sequence[float], retrieval: Sequence[float], words: str
) -> None:
    found = judged(
        "multitask-retrieval-or-estimation",
        tables_1(
            pool_loss_above_the_ceiling=pool, unseen_loss_above_the_ceiling=unseen, unseen_gain_over_retrieval=retrieval
        ),
    )
    assert found.verdict == "found"
    assert found.text.startswith(words)
    assert "which needs no training" not in found.text
    worse = tables_1(unseen_gain_over_order_1=DOWN)
    assert "which needs no training" in judged("multitask-retrieval-or-estimation", worse).text
    assert found.value == pytest.approx(np.mean(unseen) - np.mean(pool))


def test_one_seed_has_the_interval_of_its_prompts() -> None:
    tables = tables_1()
    for row in tables["effects"]:
        row |= {"low": row["value"] - 0.4, "high": row["value"] + 0.4}
    one = {name: [row for row in rows if row["seed"] == 0] for name, rows in tables.items()}
    assert judged("multitask-accuracy-rises-with-length", one).verdict == "inconclusive"
    found = judged("multitask-retrieval-or-estimation", one)
    assert (found.value, found.low, found.high) == pytest.approx((0, -0.4 * 2**0.5, 0.4 * 2**0.5))


def test_effects_are_differences_of_the_right_columns() -> None:
    """Accuracies that are a code of demonstrations, position and predictor."""
    demonstrations, positions = np.repeat([0, 1, 2], 6), np.tile(np.arange(6), 3)
    code = (100.0 * demonstrations + positions)[None].repeat(5, 0)
    names = {"model": 0.0, "order-1": 1000.0, "known-component": 3000.0, "retrieval": 5000.0}
    measures = {name: {metric: code + shift for metric in ("accuracy", "loss")} for name, shift in names.items()}
    score = Score(measures, demonstrations, positions, None)
    found = {row["effect"]: row["value"] for row in fig1.effects({"unseen": score}, 4)}
    assert found == pytest.approx(
        {
            "demonstrations": 200.0,
            "length": 5.0,
            "length after one": 4.0,
            "above order-1": -1000.0,
            "below the ceiling": 3000.0,
            "loss above the ceiling": -3000.0,
            "gain over order-1": 1000.0,
            "gain over retrieval": 5000.0,
        }
    )


@pytest.mark.parametrize("memory", [1, 2, 3])
@pytest.mark.parametrize("number", [1, 3])
def test_the_network_of_the_theorem_is_what_is_shown(memory: int, number: int) -> None:
    """The closed form against the network itself, with a causal mask, on the same prompts."""
    corpus, steps = Corpus(SPEC.build(), layout=PROMPTS), 4
    batch = corpus[0:5]
    network = multitask_theorem1(
        4, memory, steps, num_demonstrations=number, demonstration_length=5, test_length=6 if number == 3 else 5,
        causal=True,
    )  # fmt: skip
    length = 6 if number == 3 else 5
    columns = number * 6 + 1 + length  # of the prompt that ends after the sequence that is judged
    vectors = network(batch.tokens[:, :columns])
    asked = [t for t in range(5 * number, 5 * number + length) if t - 5 * number >= memory]
    found = fig1.constructed_vectors(corpus, batch.observations, torch.tensor(asked), number, memory, steps)
    wanted = vectors[:, [PROMPTS.columns[t] - 1 for t in asked]]
    assert (found - wanted).abs().max() < 1e-9
    assert found.abs().max() > 0.1


def test_smoothing_keeps_the_pool_and_allows_everything() -> None:
    pool = SPEC.build()
    smooth = fig1.smoothed(pool, 0.01)
    assert (smooth.law.rows()[2] >= 0.01 / 4 - 2**-30).all()
    assert (smooth.law.rows()[2] - pool.law.rows()[2]).abs().max() <= 0.01
    observations = Corpus(pool, layout=PROMPTS)[0:20].observations
    starts = torch.from_numpy(PROMPTS.starts)
    exact, near = (
        optimal_predictions(p, observations, starts=starts).log_likelihood_terms.mean() for p in (pool, smooth)
    )
    assert near < exact
    assert near > exact - 0.1


# ---------------------------------------------------------------------------------------------------------------------
# Figure 2


def tables_2(centred: Sequence[float], raw: Sequence[float], mode: str = "blocks") -> Tables:
    rows = []
    for effect in ("lower less upper", "last less before"):
        rows += seeded(centred, mode=mode, effect=effect, metric="cv_centred", network="trained")
        rows += seeded(raw, mode=mode, effect=effect, metric="cv", network="trained")
        rows += seeded((0.0, 0.01, -0.01), mode=mode, effect=effect, metric="cv_centred", network="untrained")
    return {"effects": rows}


@pytest.mark.parametrize("mode", ["blocks", "layer"])
@pytest.mark.parametrize(
    "centred, raw, verdict",
    [
        (UP, UP, "reproduced"),
        (DOWN, DOWN, "not reproduced"),
        (UP, DOWN, "inconclusive"),
        (DOWN, UP, "inconclusive"),
        (OPEN, UP, "inconclusive"),
        (UP, OPEN, "inconclusive"),
    ],
)
def test_upper_layers(mode: str, centred: Sequence[float], raw: Sequence[float], verdict: str) -> None:
    name = {"blocks": "multitask-upper-layers-ignore-places", "layer": "multitask-upper-layers-read-no-positions"}[mode]
    found = judged(name, tables_2(centred, raw, mode))
    assert found.verdict == verdict
    assert found.value == pytest.approx(np.mean(centred))


@pytest.mark.parametrize("values, word", [(UP, "rises"), (DOWN, "falls"), (OPEN, "does not clearly change")])
def test_last_layer(values: Sequence[float], word: str) -> None:
    found = judged("multitask-last-layer-reverts", tables_2(values, UP))
    assert found.verdict == "found"
    assert f"the variation {word} when" in found.text


@pytest.mark.parametrize("num_layers, difference", [(2, -1.0), (3, -2.0), (4, -2.0), (5, -3.0)])
def test_halves_of_the_layers(num_layers: int, difference: float) -> None:
    """Layer l has the value l in all its heads, of which layers have different numbers."""
    by_layer = {layer: torch.full((6, layer), float(layer)).double() for layer in range(1, num_layers + 1)}
    values = {metric: by_layer for metric in ("cv", "cv_centred", "attention_change")}
    found = {(row["effect"], row["metric"]): row["value"] for row in fig2.effects(values)}
    assert found["lower less upper", "cv"] == difference
    assert found["last less before", "cv_centred"] == 1.0


# ---------------------------------------------------------------------------------------------------------------------
# Figure 7


def tables_7(nearby: Sequence[float], aligned: Sequence[float]) -> Tables:
    effects = seeded(aligned, network="both", effect="alignment, trained less untrained")
    for network in ("trained", "untrained"):
        effects += seeded(nearby, network=network, effect="same sequence, lower less upper")
        for name in ("same sequence, lower", "same sequence, upper", "alignment"):
            effects += seeded((0.2, 0.3, 0.4), network=network, effect=name)
    best = [
        row | {"layer": row["seed"] + offset, "offset": offset, "network": "trained"}
        for offset in (1, 2)
        for row in seeded((0.5, 0.7))
    ]
    return {"effects": effects, "alignment": best}


@pytest.mark.parametrize("values, verdict", WAYS)
def test_nearby_and_aligned(values: Sequence[float], verdict: str) -> None:
    assert judged("multitask-lower-layers-look-nearby", tables_7(values, OPEN)).verdict == verdict
    found = judged("multitask-copying-heads", tables_7(OPEN, values))
    assert found.verdict == verdict
    assert "1 back: 0.60 in layer 1.5; 2 back: 0.60 in layer 2.5" in found.text


def test_sources_of_columns() -> None:
    #  | 5 tokens | 5 tokens | 5 tokens | 6 tokens, the last of which looks
    wanted = ([3] + [2] * 5) * 3 + [3] + [1] * 5 + [0]
    assert fig7.source_of_columns(PROMPTS).tolist() == wanted
    rows = fig7.uniform_rows(PROMPTS, {1: np.zeros((1, 1, 1))})
    assert {row["source"]: row["value"] * 25 for row in rows} == pytest.approx(
        dict(zip(fig7.SOURCES, (1, 5, 15, 4), strict=True))
    )


def heads(*offsets: int, samples: int = 4) -> np.ndarray:
    """Heads that each look at one column back."""
    pattern = np.zeros((samples, len(offsets), PROMPTS.num_columns))
    for head, offset in enumerate(offsets):
        pattern[:, head, -1 - offset] = 1
    return pattern


def test_alignment_finds_the_heads_that_copy() -> None:
    networks = {"trained": {1: heads(0, 1), 2: heads(4, 20)}, "untrained": {1: heads(0, 9), 2: heads(8, 7)}}
    rows, effects = fig7.alignment(networks, PROMPTS, {1: 1, 2: 4, 3: 3})
    best = {(row["offset"], row["network"]): (row["layer"], row["head"], row["value"]) for row in rows}
    assert best[1, "trained"] == (1, 1, 1.0)
    assert best[4, "trained"] == (2, 0, 1.0)
    assert best[3, "trained"][2] == 0
    found = {(row["network"], row["effect"]): row["value"] for row in effects}
    assert found["both", "alignment, trained less untrained"] == pytest.approx(2 / 3)
    assert found["trained", "same sequence, lower"] == 0.5  # the head on the token itself does not count
    assert found["trained", "same sequence, lower less upper"] == 0


def test_the_construction_gathers_by_doubling() -> None:
    network = multitask_theorem1(4, 4, 2, num_demonstrations=3, demonstration_length=5, test_length=6, causal=True)
    corpus = Corpus(SPEC.build(), layout=PROMPTS)
    patterns = fig7.last_token_patterns(network, corpus, 3)
    gathering = fig7.gathering_heads(network, patterns)
    assert list(gathering) == [1, 2, 3]  # ceil(log2(4 + 1)) of them
    assert sorted(gathering.values())[:2] == [1, 2]
    for layer, offset in gathering.items():
        assert patterns[layer][:, 0, -1 - offset].min() > 0.99
    rows = fig7.offset_rows(patterns, 10, gathering)
    shares = [row["value"] for row in rows if row["layer"] == 1]
    assert shares == pytest.approx([0, 1, *[0] * 9], abs=1e-6)
    totals = {row["layer"]: 0.0 for row in rows}
    for row in fig7.source_rows(patterns, PROMPTS):
        totals[row["layer"]] += row["value"]
    assert all(total == pytest.approx(1) for total in totals.values())
