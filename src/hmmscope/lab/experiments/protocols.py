"""Protocols: the plan and the decision rules of an experiment, committed to git before its first run.

    hmmscope run limits-fig3 --scale medium --seeds 8,9,10 --dry-run --protocol fig3.json     writes the protocol only
    git add fig3.json && git commit                                                           dates the file
    hmmscope run limits-fig3 --scale medium --seeds 8,9,10 --protocol fig3.json --out DIR     runs under the protocol

A claim's verdict is confirmatory if and only if all its data were measured under a protocol with its current rule.
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
    if path.exists():
        raise RefusedError(f"{path}: exists, and a protocol is never overwritten; choose another file")
    data = store.json_bytes(protocol_data(plan), str(path))
    store.write_bytes(path, data)
    return hashlib.sha256(data).hexdigest()


def handed_on(given: Protocol | None, kept: StoredParts | None) -> tuple[Protocol | None, dict[str, str]]:
    if given is not None:
        return given, {"protocol": given.digest, "begun": datetime.now(UTC).isoformat(timespec="seconds")}
    if kept is None or "protocol" not in kept.about:
        return None, {}
    return read_protocol(kept.folder / PROTOCOL), {key: kept.about[key] for key in ("protocol", "begun")}


def protocol_for(plan: ExperimentPlan, path: Path) -> Protocol:
    found, wanted = read_protocol(path), protocol_data(plan)
    if (found.experiment, found.scale) != (plan.experiment.name, plan.scale):
        raise InputError(
            f"protocol: {path} is for {found.experiment} at scale {found.scale}, not {plan.experiment.name} at "
            f"{plan.scale}"
        )
    difference = config_difference(found.plan, wanted["plan"])
    if difference:
        raise InputError(f"protocol: {path} is for another plan ({'; '.join(difference[:4])}); commit a new protocol")
    if found.measurement != wanted["measurement"]:
        versions = f"version {found.measurement} of the measuring code; the current version is {wanted['measurement']}"
        raise InputError(f"protocol: {path} is for {versions}; write and commit a new protocol")
    for claim in claims_of(plan.experiment.name):
        why = None if claim.rule is None else found.against(claim)
        if why is not None:
            raise InputError(f"protocol: {path} does not fit claim {claim.name} ({why}); commit a new protocol")
    return found
