#!/bin/bash
# The steps of `make test-cluster` that are more than one line. Called by the Makefile with KUBECONFIG, KIND_CLUSTER,
# IMAGE_PREFIX and IMAGE_TAG set. All of it works on the kind cluster of that name through that kubeconfig alone.
#
#   tools    finds docker, kind, kubectl and helm, or says what is missing
#   node     makes the cluster unless it is there
#   load     loads the images into it
#   install  installs the chart with two API keys, alice's and bob's, in .build/keys.json; takes more flags for helm
#   contract      runs in it what all kinds of sandboxes must do
#   e2e-together  runs helm test, then the tests of all parts together
#   e2e-objects   runs the tests of the chart, of the API server with what the chart installs there, and of a second release
#   e2e-watched   runs the tests that break releases of their own, and see that alerts and verify say so
#   e2e-operator  runs the tests that bring an operator of their own
#   e2e-alone     runs the tests that stop something of the whole cluster, and bring it back
#   chaos    installs the chart so that more can go wrong, such as clocks
#   rage, soak    run the programs of `make chaos` and `make soak`
#   clock-folder  prints the folder of the clocks of gateways and operators
#   down     deletes the cluster
#   story    prints what a failed test leaves to look at, bounded
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .build

NAMESPACE=sandpod
SANDBOXES=sandpod-sandboxes
TEAM=$SANDBOXES-team # of the tenant in tests/e2e/values.yaml
SHARED=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/sandpod/$KIND_CLUSTER # a folder that the cluster's node sees
WORKERS=${KIND_WORKERS:-0} # nodes beside the first, for what takes a node of several away
# The Kubernetes version that is tested, where it can be had; else the one that kind brings.
NODE_IMAGE=${NODE_IMAGE:-kindest/node:v1.34.4}
# A program beside the checkout that gives a machine docker, kind, kubectl and helm. Most machines have them already.
CLUSTER_SETUP=${CLUSTER_SETUP:-../shared/cluster/setup}

say() { echo "cluster: $*" >&2; }
# All of the list is read: grep -q ends at the first hit, and kind, which has more clusters to name, then fails.
there() { kind get clusters 2>/dev/null | grep -x "$KIND_CLUSTER" >/dev/null; }
usable() { command -v kind >/dev/null && command -v kubectl >/dev/null && command -v helm >/dev/null && docker info >/dev/null 2>&1; }

tools() {
  usable && return
  if [ -x "$CLUSTER_SETUP" ] && [ "$(id -u)" = 0 ]; then
    "$CLUSTER_SETUP"
  fi
  usable && return
  say "This needs a running Docker engine, kind, kubectl and helm: install what is missing, then try again."
  exit 1
}

node() {
  if ! there; then
    docker image inspect "$NODE_IMAGE" >/dev/null 2>&1 || docker pull --quiet "$NODE_IMAGE" || NODE_IMAGE=
    mkdir -p "$SHARED/patches"
    # The control plane collects garbage a quarter as often: a cluster of tests has the memory, and not the processors.
    for part in kube-apiserver kube-controller-manager etcd; do
      cat >"$SHARED/patches/$part.yaml" <<END
spec: {containers: [{name: $part, env: [{name: GOGC, value: "400"}]}]}
END
    done
    local mount="extraMounts: [{hostPath: \"$SHARED\", containerPath: /shared, readOnly: true}]" nodes worker
    nodes="{role: control-plane, $mount}"
    for ((worker = 0; worker < WORKERS; worker++)); do nodes+=", {role: worker, $mount}"; done
    kind create cluster --name "$KIND_CLUSTER" ${NODE_IMAGE:+--image "$NODE_IMAGE"} --wait 180s --config - <<END
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [$nodes]
kubeadmConfigPatches:
  - "{kind: InitConfiguration, patches: {directory: /shared/patches}}"
  - "{kind: KubeletConfiguration, maxPods: 200}" # a benchmark keeps 100 sandboxes on it
END
  fi
  kind export kubeconfig --quiet --name "$KIND_CLUSTER"
  # Beside workers the first node would take no pods of ours.
  [ "$WORKERS" = 0 ] || kubectl taint nodes --all node-role.kubernetes.io/control-plane- >/dev/null 2>&1 || true
}

load() {
  local nodes node known part name id images
  nodes=$(kind get nodes --name "$KIND_CLUSTER")
  for node in $nodes; do
    known=$(docker exec "$node" crictl images --no-trunc) images=()
    # The images of the tests are there only where they were built. All at once: what several share is sent once.
    for part in gateway operator sandbox test-ruby test-busybox test-nginx; do
      name=$IMAGE_PREFIX/$part
      id=$(docker image inspect --format '{{.Id}}' "$name:$IMAGE_TAG" 2>/dev/null) || continue
      grep -Eq "(^|/)$name +$IMAGE_TAG +$id " <<<"$known" || images+=("$name:$IMAGE_TAG")
    done
    [ ${#images[@]} -gt 0 ] || continue
    # As a file that the node sees, and not through its standard input, as kind does it, which takes three times the
    # processor time.
    docker save --output "$SHARED/images.tar" "${images[@]}"
    docker exec "$node" ctr --namespace k8s.io images import --local --snapshotter overlayfs /shared/images.tar >/dev/null
    rm "$SHARED/images.tar"
  done
}

# A rebuilt image of the same tag must reach the pods, so its id is part of their template.
image_id() { docker image inspect --format '{{.Id}}' "$IMAGE_PREFIX/$1:$IMAGE_TAG"; }

install() {
  .venv/bin/python tools/test_values.py .build/keys.json .build/values.yaml .build/helm-test.yaml
  kubectl apply --server-side --force-conflicts -f charts/sandpod/crds >/dev/null
  kubectl create namespace $NAMESPACE --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl apply -n $NAMESPACE -f .build/helm-test.yaml >/dev/null
  local values=(--values tests/e2e/values.yaml --values .build/values.yaml) part
  for part in gateway operator; do
    values+=(--set "$part.image.repository=$IMAGE_PREFIX/$part" --set "$part.image.tag=$IMAGE_TAG")
    values+=(--set "$part.podAnnotations.image=$(image_id $part)")
  done
  for part in ruby busybox; do
    values+=(--set "sandboxes.templates.$part.image=$IMAGE_PREFIX/test-$part:$IMAGE_TAG")
  done
  values+=(--set "sandboxes.image.repository=$IMAGE_PREFIX/sandbox" --set "sandboxes.image.tag=$IMAGE_TAG")
  local earlier
  earlier=$(kubectl get sandboxes.sandpod.dev -A -o 'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {end}')
  helm upgrade --install sandpod charts/sandpod --namespace $NAMESPACE "${values[@]}" "$@" --timeout 5m >/dev/null
  kubectl -n $NAMESPACE rollout status deployment --timeout=300s
  # What an earlier image left warm is made anew.
  for part in $earlier; do
    kubectl -n "${part%/*}" delete sandboxes.sandpod.dev "${part#*/}" --ignore-not-found >/dev/null
  done
  for part in $SANDBOXES $TEAM; do
    kubectl -n $part wait sandboxpool/default --for=jsonpath='{.status.readyReplicas}'=2 --timeout=180s
  done
}

export SANDPOD_NAMESPACE=$NAMESPACE SANDPOD_SANDBOX_NAMESPACE=$SANDBOXES SANDPOD_KEYS="$PWD/.build/keys.json"

contract() {
  # Of the suite that all backends pass, `make test` runs the rest. In a tenant's namespace, whose pools nobody else uses.
  SANDPOD_TEST_KUBERNETES=1 SANDPOD_TEST_NAMESPACE=$TEAM .venv/bin/pytest tests/contract -k kubernetes "$@"
}

# The installed parts may come and go beside these two. The first need the processor, the second wait most of the time.
objects=(tests/e2e/test_{admission,claim_storm,claims,crds,rbac,team,tenants_on_first_use}.py)
# Releases of their own, of which they break everything, and wait until that is seen.
watched=(tests/e2e/test_{alerts,verify}.py)
# The first begins what the kubelet takes long to notice, and the last asks for it.
operator=(tests/e2e/test_stalled_watches.py tests/e2e/test_operator_[!e]*.py tests/e2e/test_operator_ends.py)
# What it does is felt in the whole cluster.
alone=(tests/e2e/test_{policies_ignored,upgrade,chaos}.py)

e2e-objects() {
  SANDPOD_TEST_KUBERNETES=1 .venv/bin/pytest tests/chart "${objects[@]}" "$@"
}

e2e-watched() {
  SANDPOD_TEST_KUBERNETES=1 .venv/bin/pytest "${watched[@]}" "$@"
}

e2e-operator() {
  SANDPOD_TEST_KUBERNETES=1 .venv/bin/pytest "${operator[@]}" "$@"
}

e2e-together() {
  helm test sandpod --namespace $NAMESPACE --timeout 3m
  local others=("${objects[@]}" "${watched[@]}" "${operator[@]}" "${alone[@]}")
  SANDPOD_TEST_KUBERNETES=1 .venv/bin/pytest tests/e2e "${others[@]/#/--ignore=}" "$@"
}

e2e-alone() {
  SANDPOD_TEST_KUBERNETES=1 .venv/bin/pytest "${alone[@]}" "$@"
}

clock-folder() { echo "$SHARED/clock"; }

chaos() {
  local folder=$SHARED/clock part
  mkdir -p "$folder"
  if [ ! -e "$folder/libfaketime.so.1" ]; then
    # A clock of containers is the machine's: only what programs are told of it can be changed.
    (cd "$folder" && apt-get download -qq libfaketime && dpkg -x libfaketime_*.deb . &&
      cp usr/lib/*/faketime/libfaketime.so.1 . && rm -r usr libfaketime_*.deb) >/dev/null 2>&1 ||
      say "Without Debian's libfaketime no clock can jump."
  fi
  for part in gateway operator; do echo +0s >"$folder/$part"; done
  install --values tests/chaos/values.yaml
}

rage() { PYTHONPATH=tests .venv/bin/python -m chaos.chaos "$@"; }

soak() { PYTHONPATH=tests .venv/bin/python -m chaos.soak "$@"; }

down() {
  ! there || kind delete cluster --name "$KIND_CLUSTER"
}

story() {
  kubectl get nodes,pods -A -o wide | head -60
  kubectl get sandboxpools,sandboxtemplates,sandboxes -n $SANDBOXES -o wide | head -60
  kubectl get events -A --sort-by=.lastTimestamp | tail -60
  local part
  for part in gateway operator; do
    echo "--- $part"
    kubectl -n $NAMESPACE describe pods -l app.kubernetes.io/component=$part | tail -80
    kubectl -n $NAMESPACE logs -l app.kubernetes.io/component=$part --all-containers --prefix --tail=150 | cut -c1-400
    kubectl -n $NAMESPACE logs -l app.kubernetes.io/component=$part --all-containers --prefix --tail=60 --previous 2>/dev/null | cut -c1-400 || true
  done
}

case "${1:-}" in
  tools | node | load | install | contract | e2e-together | e2e-objects | e2e-watched | e2e-operator | e2e-alone | chaos | rage | soak | clock-folder | down | story) "$@" ;;
  *) say "use: tools/cluster.sh tools|node|load|install|contract|e2e-together|e2e-objects|e2e-watched|e2e-operator|e2e-alone|chaos|rage|soak|clock-folder|down|story" && exit 2 ;;
esac
