#!/bin/bash
# Makes .venv from a lock file and installs this checkout into it: `tools/setup.sh run` for what the local server
# needs, `tools/setup.sh dev` for everything. Called by the Makefile. Does nothing when the environment is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=$1
python=${PYTHON:-python3}
venv=.venv
say() { echo "setup: $*" >&2; }

# MCP's conformance suite, an OpenID Connect provider, what checks pages for accessibility, and E2B's client, in JavaScript.
suites=(tests/contract/conformance tests/contract/sign_in tests/contract/console tests/clients/e2b)
want() {
  local files=("requirements/$1.lock" pyproject.toml client/pyproject.toml)
  [ "$1" = run ] || files+=(requirements/provider.lock "${suites[@]/%//package-lock.json}")
  cat "${files[@]}" | sha256sum | cut -d' ' -f1
}
done_already() { [ -x $venv/bin/sandpod ] && [ "$(cat "$venv/.$1" 2>/dev/null)" = "$(want "$1")" ]; }

# The development environment holds all that the run environment does.
if done_already dev || { [ "$kind" = run ] && done_already run; }; then
  exit 0
fi

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  say "Sandpod needs Python 3.11 or later: install it, or name one with make PYTHON=/path/to/python3."
  exit 1
fi

# Debian keeps what `python3 -m venv` needs in a package of its own.
if [ ! -x $venv/bin/pip ] && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing python3-venv"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
  else
    say "This Python can't make environments: install the package python3-venv (Debian: apt-get install python3-venv), then try again."
    exit 1
  fi
fi

say "installing requirements/$kind.lock into $venv"
rm -f $venv/.run $venv/.dev
tools/install.sh $venv "requirements/$kind.lock"
editable=(install --quiet --no-deps --no-build-isolation --editable ./client --editable .)
$venv/bin/uv pip "${editable[@]}" --offline --python $venv/bin/python \
  || $venv/bin/python -m pip --disable-pip-version-check --no-input "${editable[@]}"
if [ "$kind" = dev ]; then
  # The tests' sandboxes can't write here what they have compiled.
  $venv/bin/python -c 'import IPython, matplotlib.pyplot, pandas, PIL.Image, plotly.graph_objects'
  # Another OpenID Connect provider, which has libraries of its own.
  tools/install.sh $venv/provider requirements/provider.lock $venv
  for suite in "${suites[@]}"; do
    say "installing $suite into $venv"
    tools/npm_ci.sh "$suite" "$venv/${suite##*/}"
  done
fi
want "$kind" >"$venv/.$kind"
