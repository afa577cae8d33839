"""No claim on training is decided by networks that learned nothing, on either side, nor by labels that mean nothing."""

import random
from dataclasses import replace
from functools import cache

import pytest

from adversarial_tables import Attack, attacks, falls, folders, judged, kept, on_training, permuted, trained
from hmmscope.lab.evidence.claim import Claim, Measurement
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import Above, Gate
from hmmscope.system_info import source_digest


@pytest.mark.slow
@pytest.mark.timeout(3000)  # 40 seconds of a processor, which a busy machine may make ten minutes
@pytest.mark.parametrize("folder", folders())
def test_no_attack_leaves_a_claim_decided(folder: str) -> None:
    experiment, tables = kept(folder)
    before = [(claim, judged(claim, tables)) for claim in on_training(experiment.name)]
    found = []
    for attack in attacks(experiment, tables):
        made = replace(attack, tables=cache(attack.tables), without=attack.without and cache(attack.without))
        found += [(claim.name, attack.name) for claim, own in before if falls(claim, own, made)]
    assert found == []


@pytest.mark.long
def test_no_attack_of_a_sample_leaves_a_claim_decided() -> None:
    """Other attacks whenever the source has changed."""
    draw = random.Random(source_digest())
    found = []
    for folder in draw.sample(folders(), 5):
        experiment, tables = kept(folder)
        sample = draw.sample(known := attacks(experiment, tables), min(4, len(known)))
        for claim in on_training(experiment.name):
            before = judged(claim, tables)
            found += [(folder, claim.name, attack.name) for attack in sample if falls(claim, before, attack)]
    assert found == []


def test_an_attack_is_no_empty_test() -> None:
    """A claim that only asks whether an RNN fits longer is decided by Transformers that learned nothing."""
    experiment, tables = kept("small/limits-fig3")
    (attack,) = (one for one in attacks(experiment, tables) if one.name == "layers != 0")

    def longer(tables: Tables) -> Measurement:
        rows = tables["positions"].where(predictor="model", task="cyclic-det", position=16)
        return Measurement(rows.where(layers=[1, 2, 3]).less(rows.where(layers=0)), "Longer.")

    said = {key: "?" for key in ("name", "source", "claim_text", "operationalization")}
    bold = Claim(
        experiment="limits-fig3", rule=Above(), effect_if_true=1.0, effect_if_false=-1.0, measure=longer, **said
    )
    assert falls(bold, judged(bold, tables), attack)
    assert not falls(replace(bold, stands={"layers != 0": "A reason."}), judged(bold, tables), attack)
    gated = replace(bold, measure=lambda tables: replace(longer(tables), gates=(Gate.regime(2, 0, 1, "a gate"),)))
    assert not falls(gated, judged(gated, tables), attack)


@pytest.mark.drawn(10)
@pytest.mark.parametrize("folder", [folder for folder in folders() if folder.startswith("small/")])
def test_the_columns_that_tell_networks_apart_tell_all_that_were_trained(folder: str) -> None:
    experiment, tables = kept(folder)
    nothing = experiment.without_training(tables)
    assert nothing is not None
    changed = [trained(rows) for name, rows in tables.items() if name in nothing and rows != nothing[name]]
    told = max(len(rows.by(*experiment.run_columns)) if experiment.run_columns else 1 for rows in changed)
    assert told == len(tables["runs"].values("label"))


def test_permuted_depths_stand_in_the_place_of_each_other_one() -> None:
    """With as many seeds as depths each stands once in each place; rows of one network and depth stay together."""
    rows = Rows({"seed": s, "task": t, "layers": n, "value": 10 * n} for s in range(3) for t in "ab" for n in (1, 2, 3))
    for draw in range(3):
        turned = permuted(("task", "layers"), rows, draw)
        for own in turned.by("task").values():
            assert {(row["layers"], row["value"]) for row in own} == {(n, 10 * m) for n in (1, 2, 3) for m in (1, 2, 3)}
    recurrent = Rows({"seed": 0, "task": "a", "layers": n, "value": n} for n in (0, 1))
    assert permuted(("task", "layers"), recurrent, 1) == recurrent


def test_what_labels_without_meaning_may_leave() -> None:
    """Permuted depths may deny a claim, not bear it out; permuted seeds may not turn it, nor decide it by another value."""
    said = {key: "?" for key in ("name", "source", "claim_text", "operationalization", "experiment")}
    measure = lambda tables: Measurement(tables["rows"].effect(), "So.")  # noqa: E731
    bold = Claim(**said, about="process", rule=Above(0, smallest_effect=0.1), least_power=1e-9, measure=measure)

    def rows(*values: float) -> Tables:
        return {"rows": Rows({"seed": seed, "value": value} for seed, value in enumerate(values))}

    held, more, contrary, wide = (
        rows(1.0, 1.1, 0.9),
        rows(2.0, 2.1, 1.9),
        rows(-1.0, -1.1, -0.9),
        rows(0.0, 4.0, -1.0),
    )
    decided, undecided = judged(bold, held), judged(bold, wide)
    assert (decided.verdict, undecided.verdict) == ("reproduced", "inconclusive")
    depths, seeds = ({"name": "depths, 0", "denies": True}, {"name": "seeds: a = 1", "keeps": True})
    assert falls(bold, decided, Attack(tables=lambda: more, **depths))
    assert not falls(bold, decided, Attack(tables=lambda: contrary, **depths))
    assert falls(bold, decided, Attack(tables=lambda: contrary, **seeds))
    assert not falls(bold, decided, Attack(tables=lambda: more, **seeds))
    assert falls(bold, undecided, Attack(tables=lambda: more, **seeds))
    assert not falls(bold, undecided, Attack(tables=lambda: held, **seeds))  # the same mean, of less scatter
