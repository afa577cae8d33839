import sys, re
import semantic, codemod
from pathlib import Path
root=Path(sys.argv[1]).resolve()
docs=codemod.documents(root)
r,_=semantic.analyse(root,[(p,m) for p,m,_ in docs])
(Path(__file__).parent/"out"/sys.argv[2]).write_text("\n".join(e for e in r.errors if re.search(r"\[(attr-defined|call-arg|import-not-found|name-defined|index|union-attr|call-overload)\]$",e)))
