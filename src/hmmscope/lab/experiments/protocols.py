"""Protocols: what a campaign will train, measure and judge by, written and committed before its first run.

    hmmscope run limits-fig3 --scale medium --seeds 8,9,10 --dry-run --protocol fig3.json     writes it, and runs nothing
    git add fig3.json && git commit                                                           the history says when
    hmmscope run limits-fig3 --scale medium --seeds 8,9,10 --protocol fig3.json --out DIR     runs by it, and writes none

It holds the plan, the seeds and the scale, the version of the measurement, and each rule with its version, sentence and
numbers. The folder keeps a copy, protocol.json, and every part has its digest. A verdict is confirmatory if and only if all
parts carry a protocol that names its rule as it is now, see `hmmscope.lab.evidence.protocol`.
"""

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hmmscope.errors import InputError, RefusedError
from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.evidence.protocol import FORMAT, PROTOCOL, Protocol, entry_of, read_protocol
from hmmscope.lab.experiments.parts import StoredParts, measurement_of
from hmmscope.lab.experiments.planning import ExperimentPlan
from hmmscope.storage import store
from hmmscope.storage.rundir import config_difference


def protocol_data(plan: ExperimentPlan) -> dict[str, Any]:
    """The protocol of a plan by the rules and the measurement as they are now."""
    name = plan.experiment.name
    return {
        "format": FORMAT,
        "experiment": name,
        "scale": plan.scale,
        "plan": plan.to_data(),
        "measurement": measurement_of(plan.experiment).version,
        "rules": {claim.name: entry_of(claim) for claim in claims_of(name) if claim.rule is not None},
    }


def write_protocol(plan: ExperimentPlan, path: Path) -> str:
    """Write the protocol of a plan as a new file, and return its digest.

    Raises:
        RefusedError: the file exists.
    """
    if path.exists():
        raise RefusedError(f"{path}: exists; a protocol is written once")
    data = store.json_bytes(protocol_data(plan), str(path))
    store.write_bytes(path, data)
    return hashlib.sha256(data).hexdigest()


def handed_on(given: Protocol | None, kept: StoredParts | None) -> tuple[Protocol | None, dict[str, str]]:
    """The protocol of a new folder, and what its experiment.json says of it; without one that of what it goes on from."""
    if given is not None:
        return given, {"protocol": given.digest, "begun": datetime.now(UTC).isoformat(timespec="seconds")}
    if kept is None or "protocol" not in kept.about:
        return None, {}
    return read_protocol(kept.folder / PROTOCOL), {key: kept.about[key] for key in ("protocol", "begun")}


def protocol_for(plan: ExperimentPlan, path: Path) -> Protocol:
    """The protocol in a file, which must be that of the plan by the rules and the measurement as they are now.

    Raises:
        InputError: it is not; the message names the first difference.
        DamagedError: it is no protocol.
    """
    found, wanted = read_protocol(path), protocol_data(plan)
    if (found.experiment, found.scale) != (plan.experiment.name, plan.scale):
        raise InputError(
            f"protocol: {path} is of {found.experiment} at scale {found.scale}, not {plan.experiment.name} at {plan.scale}"
        )
    difference = config_difference(found.plan, wanted["plan"])
    if difference:
        raise InputError(f"protocol: {path} has another plan ({'; '.join(difference[:4])})")
    if found.measurement != wanted["measurement"]:
        versions = f"version {found.measurement} of the measurement, which is {wanted['measurement']} now"
        raise InputError(f"protocol: {path} names {versions}; write and commit a new one")
    for claim in claims_of(plan.experiment.name):
        why = None if claim.rule is None else found.against(claim)
        if why is not None:
            raise InputError(f"protocol: {path}: {claim.name}: {why}; write and commit a new one")
    return found
