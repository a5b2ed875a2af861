PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint clean-venv

# The main job on real text: corpus, graph, mixture, training, evaluation, report.
demo: $(STAMP)
	$(BIN)/obliq demo

# The whole test suite; slow and engine tests are opt-in (-m slow, -m vllm).
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(STAMP): setup.cfg constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean-venv:
	rm -rf $(VENV)
