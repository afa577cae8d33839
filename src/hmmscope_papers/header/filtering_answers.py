"""The question of header-filtering, answered in a table: who filters an HMM that is told, at which size, and how far."""

from dataclasses import replace

from hmmscope import registry
from hmmscope.lab import Effect, Rows, Tables
from hmmscope_papers.header.filtering_measures import BEYOND, HERE, LENGTH, TIMES
from hmmscope_papers.header.filtering_models import title
from hmmscope_papers.header.header_claims import in_pairs, ratio

#: Where the networks are asked, and the heads of the columns.
PLACES = {
    HERE: f"up to {LENGTH} observations",
    BEYOND: f"from there to {TIMES * LENGTH}",
    "slow": "slowly mixing",
    "sharp": "nearly certain",
}
#: The claims whose rules say what it means to filter, and to fail.
FILTERS, FAILS = "header-transformer-filters", "header-lstm-fails"


def who_filters(tables: Tables) -> list[str]:
    """What networks leave above the filter, of what counting leaves there, as a table in Markdown; no lines without any.

    Args:
        tables: with `places`, each network after its largest budget; those of another plan are lines of their own.
    """
    rows = tables["places"]
    models = rows.where(predictor="model")
    if not models:
        return []
    filters, fails = (registry.lookup("claim", name).rule for name in (FILTERS, FAILS))
    lines = [
        "Who filters, after how many samples: nats above the filter as a share of what counting leaves at the same place, "
        f"means over seeds with their 95 % intervals, each for itself. *Filters*: below {filters.bound:g}; *fails*: above "
        f"{fails.bound:g}; *neither*: between the two; *open*: the interval holds one of them, and the number says how many "
        "seeds of this spread would decide. Slowly mixing and nearly certain HMMs were left out of the training.",
        "",
        f"| | samples | seeds | {' | '.join(PLACES.values())} |",
        "|---" * (3 + len(PLACES)) + "|",
    ]
    for (size, name), network in sorted(models.by("size", "architecture").items(), key=lambda one: one[0][0]):
        for count, own in sorted(network.by("sequences").items()):
            cells = [_cell(rows.where(size=size, architecture=name, sequences=count, place=place)) for place in PLACES]
            named = f"{size} states, {title(name)}"
            lines.append(f"| {named} | {count:,} | {len(own.values('seed'))} | {' | '.join(cells)} |")
    return lines


def _cell(rows: Rows) -> str:
    """``0.02 [0.01, 0.03]: filters``, or a dash where the network was not asked."""
    left = share_left(rows)
    return "–" if left is None else f"{replace(left, unit='')}: {said(left)}"


def share_left(rows: Rows) -> Effect | None:
    """What a network leaves at a place, of what counting leaves there; None if no seed has both."""
    model, counting = (rows.where(predictor=name).estimates() for name in ("model", "counting"))
    return in_pairs(model, counting, ratio).effect()


def said(left: Effect) -> str:
    """What a share says by the rules of both claims."""
    filters, fails = (registry.lookup("claim", name).rule for name in (FILTERS, FAILS))
    if filters.verdict(left) == "reproduced":
        return "**filters**"
    if fails.verdict(left) == "reproduced":
        return "**fails**"
    undecided = [rule for rule in (filters, fails) if rule.verdict(left) == "inconclusive"]
    if not undecided:
        return "neither"
    needed = [rule.seeds_needed(left) for rule in undecided]
    return f"open ({max(needed)} seeds)" if None not in needed else "open"
