"""Result table of header-filtering."""

from dataclasses import replace

from hmmscope import registry
from hmmscope.lab import Effect, Rows, Tables
from hmmscope_studies.prompted.filtering_measures import BEYOND, HERE, LENGTH, TIMES
from hmmscope_studies.prompted.filtering_models import title
from hmmscope_studies.prompted.header_claims import in_pairs, ratio

#: Places of evaluation, with column headings.
PLACES = {
    HERE: f"up to {LENGTH} observations",
    BEYOND: f"{LENGTH} to {TIMES * LENGTH} observations",
    "slow": "slowly mixing",
    "sharp": "nearly certain",
}
#: Claims whose rules define “filters” and “fails”.
FILTERS, FAILS = "header-transformer-filters", "header-lstm-fails"


def who_filters(tables: Tables) -> list[str]:
    """Return a Markdown table of networks' excess losses divided by the n-gram baseline's; empty without networks.

    Args:
        tables: Tables of the experiment header-filtering.
    """
    rows = tables["places"]
    models = rows.where(predictor="model")
    if not models:
        return []
    filters, fails = (registry.lookup("claim", name).rule for name in (FILTERS, FAILS))
    lines = [
        "The table shows the excess loss over the exact filter divided by that of the n-gram baseline on the same samples "
        f"(means over seeds with 95 % intervals). *Filters*: the ratio is below {filters.bound:g}; *fails*: above "
        f"{fails.bound:g}; *neither*: between the two; *open*: the interval contains a bound (in parentheses: how "
        "many seeds would decide at this spread). Training left out slowly mixing and nearly deterministic HMMs.",
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
    left = share_left(rows)
    return "–" if left is None else f"{replace(left, unit='')}: {said(left)}"


def share_left(rows: Rows) -> Effect | None:
    model, counting = (rows.where(predictor=name).estimates() for name in ("model", "counting"))
    return in_pairs(model, counting, ratio).effect()


def said(left: Effect) -> str:
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
