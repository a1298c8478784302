#!/bin/bash
# Makes .build/clients, the environment of other libraries' clients: they bring an MCP client that is not this project's.
# Called by the Makefile, perhaps twice at once: the second one waits, and finds it made.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements/clients.lock npm=tests/clients/programs/package-lock.json done=.build/clients/.done
mkdir -p .build
exec 9>.build/clients.lock
flock 9
if [ $done -nt $lock ] && [ $done -nt $npm ]; then
  exit 0
fi
rm -rf .build/clients
tools/npm_ci.sh "${npm%/*}" .build/clients/programs &
tools/install.sh .build/clients $lock .venv
wait $!
touch $done
