#!/bin/sh
# The command line: copy a file in, work on it, look at what came of it, and copy that out.
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
echo "3 1 2" >"$folder/numbers.txt"

sandpod cp "$folder/numbers.txt" :work/
sandpod run -c 'print(sorted(open("work/numbers.txt").read().split()), file=open("work/sorted.txt", "w"))'
sandpod ls :work
sandpod cp :work/sorted.txt "$folder/"
cat "$folder/sorted.txt"
echo "hello" | sandpod run --language shell -c 'tr a-z A-Z'
