"""`hmmscope claims --audit`: check whether rules are older than their data, and which code measured the data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError
from hmmscope.lab.evidence.ledger import LedgerRow, read_about
from hmmscope.lab.evidence.protocol import PROTOCOL, NoHistoryError, committed, read_protocol
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.lab.experiments.parts import INDEX, measurement_of
from hmmscope.storage import store

#: Reason why a verdict without a protocol counts as confirmatory.
_NOTED = "by the decision rules that the run recorded at its start, because protocols did not exist then"


def audit(entries: Sequence[LedgerRow], folders: Sequence[Path]) -> list[str]:
    """Return lines that say why verdicts are confirmatory or exploratory, and which code versions measured the data.

    Raises:
        DamagedError: A protocol is in no commit, or was committed after its data were collected.
    """
    judged = [entry for entry in entries if not entry.claim.is_question]
    why: dict[str, list[str]] = {}
    for entry in judged:
        why.setdefault(_why(entry, folders), []).append(entry.claim.name)
    confirmed = sum(entry.exploratory is None for entry in judged)
    questions = len(entries) - len(judged)
    lines = [
        f"{len(judged)} verdicts: {confirmed} confirmatory, {len(judged) - confirmed} exploratory; "
        f"{questions} answers to questions"
    ]
    for reason, names in sorted(why.items()):
        lines.append(f"  {len(names)} {reason}: {', '.join(names)}")
    return lines + _parts(folders)


def _folder(entry: LedgerRow, folders: Sequence[Path]) -> Path:
    own = [one for one in folders if entry.folder in (one.name, str(one))]
    return next(one for one in own if read_about(one).get("scale") == entry.scale)


def _why(entry: LedgerRow, folders: Sequence[Path]) -> str:
    if entry.exploratory is not None:
        return f"exploratory: {entry.exploratory}"
    folder = _folder(entry, folders)
    about = read_about(folder)
    if "protocol" not in about:
        return f"confirmatory {_NOTED}"
    protocol = read_protocol(folder / PROTOCOL)
    by = f"confirmatory by the protocol {protocol.digest[:12]}"
    try:
        when = committed(protocol, folder)
    except NoHistoryError as error:
        return f"{by}, but its git history is unavailable ({error})"
    if when is None:
        raise DamagedError(f"{folder / PROTOCOL}: is in no commit; a protocol must be committed before the first run")
    if when > datetime.fromisoformat(about["begun"]):
        raise DamagedError(
            f"{folder / PROTOCOL}: committed {when.isoformat()}, but data collection had already begun ({about['begun']})"
        )
    return f"{by}, committed {when.date().isoformat()}"


def _parts(folders: Sequence[Path]) -> list[str]:
    counts: Counter[str] = Counter()
    older = []
    for folder in folders:
        if not (folder / INDEX).is_file():
            continue
        about = read_about(folder)
        known = measurement_of(experiment_named(about["experiment"]))
        versions = Counter((known.of(part), _added(part)) for part in store.read_table(folder / INDEX))
        for (version, added), count in versions.items():
            kind = "present" if version == known.version else "unknown" if version is None else "earlier"
            counts[kind] += count
            if kind != "present":
                said = "an unknown version" if version is None else f"version {version}"
                older.append(
                    f"  {about['experiment']}, {about['scale']}: {count} measurements by {said} of the code (now "
                    f"version {known.version}){added}"
                )
    said = f"{sum(counts.values())} measurements: {counts['present']} from the present version of the measuring code"
    rest = counts["earlier"] + counts["unknown"]
    return [f"{said}, {rest} from other versions" if rest else said, *older]


def _added(part: Mapping[str, Any]) -> str:
    added = part.get("added", {})
    return "".join(f", with {name} of version {one}" for name, one in sorted(added.items()) if name != "created")
