"""Where the time of an experiment went."""

import time
from pathlib import Path

from hmmscope.lab.experiments.timing import time_facts, timed
from hmmscope.storage.rundir import read_journal


def test_phases_add_up_and_stand_in_the_facts(tmp_path: Path) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    out.mkdir()
    run.mkdir()
    assert time_facts(out, [run]) == []
    for phase, seconds in (("training", 0.02), ("measuring", 0.0), ("training", 0.01)):
        with timed(out, phase):
            time.sleep(seconds)
    records = read_journal(out / "timing" / "phases.jsonl")
    assert [record["phase"] for record in records] == ["training", "measuring", "training"]
    assert records[0]["seconds"] >= 0.02 > records[1]["seconds"]
    assert all(0 <= record["spent"] < 0.02 for record in records)
    (fact,) = time_facts(out, [run])
    assert fact == {"name": "time", "value": "training 0 s, measuring 0 s by the clock"}
    (out / "timing" / "phases.jsonl").write_text('{"phase": "training", "seconds": 9.0, "spent": 12.0}\n')
    lines = ['{"step": 5, "seconds": 4.0}', '{"phase": "build", "spent": 2.0}', '{"phase": "steps", "spent": 7.0}']
    (run / "timing.jsonl").write_text("\n".join([*lines, ""]))
    (fact,) = time_facts(out, [run])
    assert fact["value"] == (
        "training 9 s by the clock; training took 12 s of processor time: "
        "steps 7 s, start of worker processes, and other work 3 s, build 2 s, score 0 s"
    )
