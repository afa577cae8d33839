"""Analyse once, apply many times: writes of a line to cmd run apply.main on the same (reset) checkout."""
import sys, os, importlib, traceback, subprocess
from pathlib import Path
import semantic, codemod, texts, apply
root=Path(sys.argv[1]).resolve(); H=Path(__file__).parent
docs=codemod.documents(root)
an=semantic.analyse(root,[(p,m) for p,m,_ in docs])
print("READY",flush=True)
fifo=H/"cmd"
if not fifo.exists(): os.mkfifo(fifo)
while True:
    line=open(fifo).read().strip()
    if line=="quit": break
    try:
        subprocess.run("git reset -q --hard && git clean -fdq src tests docs bench scripts",shell=True,cwd=root,check=True)
        for m in (codemod,texts,apply): importlib.reload(m)
        apply.texts=texts
        os.chdir(root); apply.main(root,H/"renames.py",an)
    except BaseException: traceback.print_exc()
    print("FINISHED",flush=True)
