PYTHON ?= python3
BIN := .venv/bin

# Set TORCH=keep to use a torch that is already installed (for example a CUDA build).
CONSTRAINT := $(if $(TORCH),,-c constraints/torch.txt)

.venv/.installed: pyproject.toml constraints/torch.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINT) -e ".[report,hmm,test]"
	touch $@
