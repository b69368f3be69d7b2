# Everything runs in .venv, which `make` builds itself. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0

.PHONY: demo test lint bench install clean

install: $(VENV)/.installed

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) numpy pillow
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchvision==0.28.0
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,calibrate]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check transformers==5.24.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps timm==1.0.31
	touch $@

# the main job on two real scripts: a GPT-2 and a ResNet-50
demo: $(VENV)/.demo
	$(BIN)/gpurig plan examples/gpt2/train.py --epochs 10 --report plan.html
	$(BIN)/gpurig plan examples/resnet50/train.py --epochs 90

test: $(VENV)/.installed
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/planning.py

clean:
	rm -rf $(VENV) .cache plan.html
