"""Protocols: files that fix decision rules and their numbers before the data are collected.

The user commits the protocol to git before the first run; the run copies the protocol into its folder.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError
from hmmscope.lab.evidence.records import ClaimRecord
from hmmscope.schema import by_field, spec_to_data
from hmmscope.storage import disk, store

FORMAT = "hmmscope-protocol/1"
#: Name of the protocol's file in the folder of an experiment.
PROTOCOL = "protocol.json"
#: Keys of a claim that a protocol fixes, besides the version of the rule.
_NUMBERS = ("rule", "level", "numbers", "printed", "there", "none", "least_power", "more_budget_could_help")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A protocol as read from its file.

    Attributes:
        experiment, scale: name and scale of the experiment.
        plan: the plan, see `ExperimentPlan.to_data`.
        measurement: version of the measuring code.
        rules: decision rule of each claim, by name of the claim.
        data: bytes of the file.
    """

    experiment: str
    scale: str
    plan: Mapping[str, Any]
    measurement: int
    rules: Mapping[str, Mapping[str, Any]]
    data: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def against(self, record: ClaimRecord) -> str | None:
        """Return how the rule of a claim or its numbers differ from this protocol; None if they agree."""
        named = self.rules.get(record.name)
        if named is None:
            return "the protocol does not contain the decision rule"
        if named.get("version") != record.version:
            then = f"from version {named.get('version')} to {record.version}"
            return f"the decision rule changed after the protocol was fixed ({then})"
        now = entry_of(record)
        for key in (key for key in _NUMBERS if key != "least_power" or record.asks_power):
            found, present = named.get(key), now[key] if key in named else None
            if isinstance(found, Mapping) and isinstance(present, Mapping):
                other = next((name for name in found if found[name] != present.get(name)), None)
                if other is not None:
                    return f"the protocol has {other} = {found[other]!r}; the current value is {present.get(other)!r}"
            elif found != present:
                return f"the protocol has {key} = {found!r}; the current value is {present!r}"
        return None


def entry_of(record: ClaimRecord) -> dict[str, Any]:
    rule = None if record.rule is None else {"name": record.rule.name, **spec_to_data(record.rule)}
    numbers = {"rule": rule, "level": record.level, "numbers": spec_to_data(dict(record.parameters))}
    numbers |= {
        "printed": record.printed,
        "there": record.effect_if_true,
        "none": record.effect_if_false,
        "least_power": record.least_power,
        "more_budget_could_help": record.more_budget_could_help,
    }
    return {"version": record.version, "says": record.claim_text, "reading": record.operationalization, **numbers}


def read_protocol(path: Path) -> Protocol:
    data = disk.read_bytes(path, managed=False)
    found = store.parse(data, str(path))
    kinds = {"experiment": str, "scale": str, "plan": dict, "measurement": int, "rules": dict}
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DamagedError(f"{path}: is not a protocol; write one with hmmscope run ... --dry-run --protocol FILE")
    wrong = next((key for key, kind in kinds.items() if not isinstance(found.get(key), kind)), None)
    if wrong is not None or not all(isinstance(rule, dict) for rule in found["rules"].values()):
        raise DamagedError(f"{path}: {wrong or 'rules'}: is missing or has the wrong type for a protocol")
    return Protocol(**by_field(Protocol, {key: found[key] for key in kinds}), data=data)


def committed(protocol: Protocol, where: Path) -> datetime | None:
    """Return when the protocol was first committed to git; None if it is in no commit.

    Args:
        protocol: the protocol; a commit counts if it contains exactly the same bytes.
        where: any folder in the repository.

    Raises:
        NoHistoryError: there is no repository, or no git.
    """
    git = shutil.which("git")
    if git is None:
        raise NoHistoryError("git is not installed")
    inside = [git, "-C", str(where), *_PLAIN]
    kind = _said([*inside, "rev-parse", "--show-object-format"])
    if kind is None:
        raise NoHistoryError(f"{where} is not in a git repository")
    blob = hashlib.new(kind.strip(), f"blob {len(protocol.data)}\0".encode() + protocol.data).hexdigest()
    times = _said([*inside, "log", "--all", "--format=%cI", f"--find-object={blob}"])
    found = [datetime.fromisoformat(line) for line in (times or "").split()]
    return min(found, default=None)


class NoHistoryError(Exception):
    """Raised when there is no git repository or no git."""


#: Options that make the output independent of the user's git settings.
_PLAIN = ("-c", "log.showSignature=false", "-c", "core.quotePath=true", "--no-pager")


def _said(command: list[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else None
