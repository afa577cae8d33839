cd $1 || exit
.venv/bin/python scripts/check_architecture.py --write >/dev/null 2>&1
(cd tests && ../.venv/bin/python test_surviving_mutants.py >/dev/null 2>&1)
python3 scripts/renames/migration.py $1
