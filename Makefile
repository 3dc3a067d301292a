# Every target is `python3 tools/tasks.py TARGET`; the file says what each one does.
# Arguments: make test ARGS="-k encoder" · another Python: make book PYTHON=python3.12

PYTHON ?= python3
TARGETS = setup model book test serve lint links twice audit chapters launch clean

help:
	@$(PYTHON) tools/tasks.py help

$(TARGETS):
	@$(PYTHON) tools/tasks.py $@ $(ARGS)

.PHONY: help $(TARGETS)
