#!/bin/sh
# The REST API with curl: run a program, follow one that takes longer, and fetch a file.
set -eu
api="${SANDPOD_API:-http://127.0.0.1:8000/api/v1}"
key="${SANDPOD_KEY:-none}" # a server without keys takes any
call() { curl --silent --show-error --fail-with-body --header "X-API-Key: $key" "$@"; }

call "$api/runs" --json '{"code": "print(6 * 7)"}'
echo

run=$(call "$api/runs" --header "Prefer: respond-async" \
  --json '{"code": "import time\nfor i in range(3): print(i, flush=True); time.sleep(0.5)"}' |
  sed 's/.*"run_id":"\([^"]*\)".*/\1/')
call --no-buffer "$api/runs/$run/events"

echo "a file" | call --upload-file - "$api/sandboxes/default/files/notes/a.txt"
echo
call "$api/sandboxes/default/files/notes/a.txt"
