#!/bin/bash
# Makes an environment and installs a lock file into it: `tools/install.sh FOLDER LOCK [TOOLS]`. uv does it in a fifth of
# pip's time. Where it can't, such as without a wheel of its own for this machine, pip does it alone. With TOOLS, both
# are that environment's, and the new one gets none of its own; one that is there keeps what it has.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1 lock=$2 tools=${3:-$1}
if [ "$tools" != "$venv" ]; then
  [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv --without-pip "$venv"
elif [ ! -x "$venv/bin/pip" ]; then
  "${PYTHON:-python3}" -m venv --clear "$venv"
fi
pip() { "$tools/bin/python" -m pip --disable-pip-version-check --quiet --no-input "$@"; }
# Python compiles what is imported, which is a tenth of it.
from() { pip --python "$venv/bin/python" install --no-compile --require-hashes --requirement "$1"; }

index=${PIP_INDEX_URL:-$(pip config get global.index-url 2>/dev/null || true)}
export UV_SYSTEM_CERTS=1 ${index:+UV_DEFAULT_INDEX="$index"}
{ [ "$tools" != "$venv" ] || from requirements/uv.lock; } \
  && "$tools/bin/uv" pip install --quiet --require-hashes --requirement "$lock" --python "$venv/bin/python" \
  || from "$lock"
