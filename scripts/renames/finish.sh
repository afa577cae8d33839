#!/bin/bash
# finish.sh ROOT: what follows apply.py
cd $1 || exit; python3 scripts/renames/hand.py $1
.venv/bin/ruff check -q --fix src tests bench scripts >/dev/null; .venv/bin/ruff format -q src tests bench scripts
python3 - <<'PY'
import pathlib
p=pathlib.Path("src/hmmscope/analysis/shuffle.py"); t=p.read_text()
t=t.replace("lambda x, keys=keys: x[:, :, -1, keys].cpu().double()\n                    )  # type: ignore[misc]","lambda x, keys=keys: x[:, :, -1, keys].cpu().double(),  # type: ignore[misc]\n                    )"); p.write_text(t)
PY
.venv/bin/ruff format -q src tests bench scripts
.venv/bin/ruff check src bench tests scripts --output-format concise | grep -v E501 | head -30
.venv/bin/ruff check src bench tests scripts --output-format concise | grep -c E501
.venv/bin/python -c 'import hmmscope, hmmscope.lab, hmmscope_papers; from hmmscope import registry
for k in ("process","layout","model","instrument","adapter","experiment","claim","page"): print(k, len(registry.entries(k)), end=" ")' 2>&1 | tail -3
