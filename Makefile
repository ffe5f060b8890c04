# Each target installs what it needs on a fresh clone: `make demo` five packages, all others every extra. Nothing else
# is needed but python3.11.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
# Processes that the tests run in.
JOBS ?= 2

.PHONY: demo test lint types bench train notebooks pictures clean

demo: $(CORE)
	$(BIN)/neusight predict gpt2-large --gpu l4 --mode training --batch 1

test: $(DEV)
	$(BIN)/python -m pytest --numprocesses $(JOBS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

bench: $(DEV)
	$(BIN)/neusight bench
	$(BIN)/python tests/measure_page.py

# Needs NEUSIGHT_DATA. Trains every tile model that ships, in place.
train: $(DEV)
	$(BIN)/neusight train --out tile_models

# Needs NEUSIGHT_DATA. Runs every notebook from top to bottom and keeps what it shows.
notebooks: $(DEV)
	$(BIN)/python tests/execute_notebooks.py notebooks/*.ipynb

# Needs Debian's chromium. Draws the pictures of the page again.
pictures: $(DEV)
	$(BIN)/python tests/picture_page.py docs/page

clean:
	rm -rf $(VENV)

# Each is installed once, and again when what is needed changes.
$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(DEV): $(CORE)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@
