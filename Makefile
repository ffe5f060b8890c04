# `make demo` and `make test` each set everything up on a fresh clone; nothing else is needed but python3.11.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that the tests run in.
JOBS ?= 2

.PHONY: demo test lint types bench train notebooks pictures clean

demo: $(STAMP)
	$(BIN)/neusight predict gpt2-large --gpu l4 --mode training --batch 1

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses $(JOBS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/neusight bench

# Needs NEUSIGHT_DATA. Trains every tile model that ships, in place.
train: $(STAMP)
	$(BIN)/neusight train --out tile_models

# Needs NEUSIGHT_DATA. Runs every notebook from top to bottom and keeps what it shows.
notebooks: $(STAMP)
	$(BIN)/python tests/execute_notebooks.py notebooks/*.ipynb

# Needs Debian's chromium. Draws the pictures of the page again.
pictures: $(STAMP)
	$(BIN)/python tests/picture_page.py docs/page

clean:
	rm -rf $(VENV)

# Installed once, and again when what is needed changes.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,timm,diffusers,onnx,tflite,page]'
	touch $@
