// npm's own resolver and downloader for another machine than this one. Node's permission model lets it start no
// program; it fetches from the registry alone and runs nothing of a package. Reading is not restricted: it looks at each
// folder above its own.
//
// Arguments: the folder of npm, the file with the job, the file for the answer. Both files are JSON.
'use strict';

const fs = require('node:fs');
const dns = require('node:dns');
const net = require('node:net');
const { createRequire } = require('node:module');
const path = require('node:path');

const [npm, jobFile, answerFile] = process.argv.slice(2);
const load = createRequire(path.join(npm, 'package.json'));
const job = JSON.parse(fs.readFileSync(jobFile, 'utf8'));

const NOTHING_BUT_REGISTRY = { allowGit: 'none', allowRemote: 'none', allowFile: 'none', allowDirectory: 'none' };

// Connections go to the registry, and to public and private addresses that it names, but not where this machine or its
// cloud answers.
function guardConnections({ refused, trusted }) {
  const list = new net.BlockList();
  for (const network of refused) {
    const [address, length] = network.split('/');
    list.addSubnet(address, Number(length), net.isIPv6(address) ? 'ipv6' : 'ipv4');
  }
  const isRefused = (address) => list.check(address, net.isIPv6(address) ? 'ipv6' : 'ipv4');
  const refusal = () => Object.assign(new Error('refused address'), { code: 'EREFUSEDADDRESS' });
  const lookup = (name, wanted, answer) =>
    dns.lookup(name, { ...wanted, all: true }, (error, found = []) => {
      if (error) return answer(error);
      const kept = found.filter(({ address }) => !isRefused(address));
      if (kept.length === 0) return answer(refusal());
      return wanted.all ? answer(null, kept) : answer(null, kept[0].address, kept[0].family);
    });
  const { connect } = net.Socket.prototype;
  net.Socket.prototype.connect = function guarded(...given) {
    // Node hands on arguments that it has sorted as a list of its own.
    const to = Array.isArray(given[0]) ? given[0][0] : given[0];
    const host = to?.host?.replace(/^\[|\]$/g, '') ?? '';
    if (!host || to.path) throw refusal();
    if (!trusted.includes(`${host}:${to.port}`)) {
      if (net.isIP(host) && isRefused(host)) return this.destroy(refusal());
      to.lookup = lookup;
    }
    return connect.apply(this, given);
  };
}

function options() {
  const { target, scratch } = job;
  const url = new URL(job.registry);
  const auth = {};
  if (url.username) {
    const pair = `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`;
    auth[`//${url.host}${url.pathname.replace(/\/*$/, '/')}:_auth`] = Buffer.from(pair).toString('base64');
    url.username = '';
    url.password = '';
  }
  return {
    ...auth,
    ...NOTHING_BUT_REGISTRY,
    ca: job.ca ? [fs.readFileSync(job.ca, 'utf8')] : undefined,
    cache: path.join(scratch, 'cache'),
    cpu: target.cpu,
    engineStrict: true,
    fetchRetries: 1,
    ignoreScripts: true,
    libc: target.libc,
    nodeVersion: target.node,
    npmVersion: load('./package.json').version,
    os: target.os,
    path: path.join(scratch, 'project'),
    registry: url.href,
    retry: { retries: 1, minTimeout: 500 },
    timeout: 15000,
  };
}

// What the options do not cover is read from this process itself.
function pretend({ node, cpu, os }) {
  Object.defineProperty(process, 'version', { value: node });
  Object.defineProperty(process, 'arch', { value: cpu });
  Object.defineProperty(process, 'platform', { value: os });
}

async function resolve() {
  const Arborist = load('@npmcli/arborist');
  const project = path.join(job.scratch, 'project');
  fs.mkdirSync(project);
  const root = { name: 'sandbox', version: '0.0.0', dependencies: job.dependencies };
  fs.writeFileSync(path.join(project, 'package.json'), JSON.stringify(root));
  if (job.lock) {
    const lock = { ...root, lockfileVersion: 3, packages: { '': root, ...job.lock } };
    fs.writeFileSync(path.join(project, 'package-lock.json'), JSON.stringify(lock));
  }
  pretend(job.target);
  const arborist = new Arborist(options());
  const tree = await arborist.buildIdealTree({ add: job.wanted, saveType: 'prod', omit: ['dev'] });
  const { packages } = tree.meta.commit();
  const needed = new Set(job.names.map((name) => tree.edgesOut.get(name)?.to).filter(Boolean));
  for (const node of needed) {
    for (const edge of node.edgesOut.values()) if (edge.to) needed.add(edge.to);
  }
  const found = [];
  // As the registry announces it: what is in the lock comes from a sandbox.
  const announced = async ({ location, packageName, version }) => {
    if (job.lock?.[location]?.version === version) return '';
    const wanted = `${packageName}@${version}`;
    const manifest = await load('pacote').manifest(wanted, { ...arborist.options, fullMetadata: true });
    return manifest._integrity ?? '';
  };
  for (const node of tree.inventory.values()) {
    if (node.isRoot || node.inert || node.inBundle) continue;
    if (node.isLink || !node.isRegistryDependency) {
      throw Object.assign(new Error('no registry package'), { code: 'EALLOWREMOTE', spec: node.name });
    }
    const { version, hasInstallScript } = packages[node.location];
    found.push({
      path: node.location,
      name: node.packageName,
      version,
      integrity: announced(node),
      script: Boolean(hasInstallScript),
      needed: needed.has(node),
    });
  }
  for (const each of found) each.integrity = await each.integrity;
  const { '': own, ...lock } = packages;
  for (const entry of Object.values(lock)) {
    delete entry.resolved;
    delete entry.integrity;
  }
  return { packages: found, dependencies: own.dependencies ?? {}, lock };
}

// One after the other: what is on its way is bounded by one package.
async function download() {
  const pacote = load('pacote');
  const common = options();
  for (const { name, version, integrity, file } of job.packages) {
    // From where the registry says that it is, and not a sandbox.
    await pacote.tarball.file(`${name}@${version}`, file, { ...common, integrity });
  }
  return {};
}

// Only names, versions and codes: messages may hold addresses with passwords.
function described(error) {
  const spec = error.spec?.raw ?? error.spec ?? error.pkgid ?? error.package ?? /found for (\S+?)\.?$/m.exec(error.message)?.[1] ?? '';
  const code = String(error.code ?? error.name);
  const edge = error.edge ?? {};
  const versions = Array.isArray(error.versions) ? error.versions.sort(load('semver').compare) : [];
  return {
    code,
    spec: typeof spec === 'string' ? spec : '',
    required: error.required ?? null,
    versions: versions.slice(-5),
    conflict: edge.name ? `${edge.from?.name ?? 'what is asked for'} asks for ${edge.name} ${edge.spec}` : '',
  };
}

guardConnections(job.guard);
const work = job.packages ? download : resolve;
work().then(
  (answer) => fs.writeFileSync(answerFile, JSON.stringify({ answer })),
  (error) => fs.writeFileSync(answerFile, JSON.stringify({ error: described(error) })),
);
