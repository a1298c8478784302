#!/bin/bash
# Writes requirements/*.lock anew from pyproject.toml: `make lock`. Versions that are locked stay as they are;
# `make lock UPGRADE=1` takes the newest that pyproject.toml allows. The one step of this project that needs uv.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=.build/uv
[ -x "$tool/bin/uv" ] || { "${PYTHON:-python3}" -m venv "$tool" && "$tool/bin/pip" install --quiet uv; }

compile() { # name, then more options
  local name=$1
  shift
  "$tool/bin/uv" pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" ${UPGRADE:+--upgrade} \
    --output-file "requirements/$name.lock" "$@"
}

mkdir -p requirements
# dev holds everything; the others take its versions, so that what is tested is what runs.
compile dev --extra dev --group build
compile run --extra node --group build --constraints requirements/dev.lock
compile gateway --extra kubernetes --constraints requirements/dev.lock
compile operator --extra operator --constraints requirements/dev.lock

# The sandbox image's own libraries: for its one Python version, and known to nothing of this project.
"$tool/bin/uv" pip compile containers/sandbox/requirements.in --quiet --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" ${UPGRADE:+--upgrade} \
  --output-file containers/sandbox/requirements.txt
