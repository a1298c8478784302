// Waits in a Node process that was started beforehand for one program, then becomes `node program`.
//
// The job comes as JSON on descriptor 3 and ends with it. Which kind of module the code is, is found by compiling it: as
// CommonJS first, then as the same with `await`, then as an ES module. What is none of them may be TypeScript: without its
// types it is tried again. What is left is imported, whose error is then the one to show. In an ES module `require` is
// there too, since people use both.
'use strict';

const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const { pathToFileURL } = require('node:url');
const util = require('node:util');
const vm = require('node:vm');

const { quietly, register, silence, strip, tidy, usage } = require('./common.cjs');

const PARAMETERS = ['exports', 'require', 'module', '__filename', '__dirname'];
const ASYNC = 'return (async () => {';
const WORD = 4;
const DONE = 3; // RecordKind.DONE of display_records.py
const UNSETTLED = 13; // Node's own exit code for a top-level await that nothing can settle

// Through a pipe Node writes what fits and the rest later, which process.exit() then loses.
for (const stream of [process.stdout, process.stderr]) {
  stream._handle?.setBlocking?.(true);
}

silence();
reportEnd();

let awaiting = false; // whether the program is at a top-level await
process.on('beforeExit', atEnd);
rehearse();
const text = fs.readFileSync(3, 'utf8');
fs.closeSync(3);
if (text === '') {
  process.exit(0); // the runner had no use for this process
}
start(JSON.parse(text));

// The runner need not wait until Node has taken itself apart, unless something else of the program goes on.
function reportEnd() {
  const { reallyExit } = process;
  process.reallyExit = (code) => {
    try {
      if (isAlone()) writeDone(code);
    } catch {
      // There is no such file in this kernel, or the program has closed what it did not know. Its end is seen anyway.
    }
    reallyExit.call(process, code);
  };
}

function isAlone() {
  if (process.moduleLoadList.includes('NativeModule internal/worker')) return false;
  return fs.readFileSync(`/proc/self/task/${process.pid}/children`, 'latin1') === '';
}

function writeDone(code) {
  const { cpu, size } = usage();
  const record = Buffer.alloc(23); // ">BBI" and ">Bdq"
  record[0] = DONE;
  record.writeUInt32BE(17, 2);
  record[6] = code & 0xff;
  record.writeDoubleBE(cpu, 7);
  record.writeBigInt64BE(BigInt(size), 15);
  fs.writeSync(WORD, record);
}

// What every program does first is done once while there is time: Node loads and compiles much of itself on first use.
function rehearse() {
  const file = path.join(__dirname, 'rehearsal.js');
  compile('module.exports = 1', file).call.call({}, {}, Module.createRequire(file), new Module('.'), file, __dirname);
  util.format('%s %d %o', 'text', 1, {});
  Object.assign({}, process.env);
}

function start({ file, cwd, args, env }) {
  process.chdir(cwd);
  for (const name of Object.keys(process.env)) {
    delete process.env[name];
  }
  Object.assign(process.env, env);
  Module._initPaths(); // NODE_PATH may be another one
  process.argv = [process.execPath, file, ...args];
  process.execArgv = [];
  const name = path.join(cwd, path.basename(file));
  const code = tidy(fs.readFileSync(file, 'utf8'));
  const compiled = compile(code, name) ?? compileStripped(code, file, name);
  if (compiled) {
    if (/\bimport\s*\(/.test(code)) register();
    // Called by the event loop itself, so that stack traces begin with the program.
    setImmediate(runScript(compiled, file, cwd));
  } else {
    setImmediate(importModule, file, cwd);
  }
}

function compile(code, filename) {
  const options = { filename, importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER };
  for (const waits of [false, true]) {
    const [text, columnOffset] = waits ? [`${ASYNC}${code}\n})()`, -ASYNC.length] : [code, 0];
    try {
      return { call: vm.compileFunction(text, PARAMETERS, { ...options, columnOffset }), waits };
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
  }
  return null;
}

// The file becomes what runs, since workers are started from it and modules imported.
function compileStripped(code, file, name) {
  let plain;
  try {
    plain = isModule(code) ? null : strip(code, name);
  } catch (error) {
    fs.writeSync(2, `${error.stack}\n`);
    process.exit(1);
  }
  if (plain === null) return null;
  fs.writeFileSync(file, plain);
  return compile(plain, name);
}

function isModule(code) {
  try {
    quietly(() => new vm.SourceTextModule(code));
    return true;
  } catch {
    return false;
  }
}

function runScript({ call, waits }, file, cwd) {
  const main = new Module('.');
  Object.assign(main, { filename: file, path: cwd, paths: Module._nodeModulePaths(cwd) });
  process.mainModule = main;
  const require = Module.createRequire(path.join(cwd, path.basename(file)));
  require.main = main;
  const bound = call.bind(main.exports, main.exports, require, main, file, cwd);
  return waits ? () => watch(bound()) : bound;
}

function importModule(file, cwd) {
  const entry = file.replace(/\.js$/, '.mjs');
  fs.renameSync(file, entry);
  process.argv[1] = entry;
  process.mainModule = undefined;
  const require = Module.createRequire(path.join(cwd, path.basename(entry)));
  Object.defineProperty(globalThis, 'require', { value: require, configurable: true, writable: true });
  const url = pathToFileURL(entry).href;
  // The file lies elsewhere, but what it imports is meant from the working directory.
  const parentURL = pathToFileURL(path.join(cwd, path.basename(entry))).href;
  register({ url, parentURL });
  watch(import(url));
}

function watch(promise) {
  awaiting = true;
  promise.finally(() => { awaiting = false; }); // a rejection stays unhandled, and ends the process with exit code 1
}

function atEnd() {
  if (awaiting) {
    process.exitCode ??= UNSETTLED;
    fs.writeSync(2, 'Warning: a top-level await was never settled.\n');
  }
  // Node takes itself apart at its natural end, which takes longer than a small program does: process.exit() does not.
  // A program that listens itself may have more to do.
  if (process.listenerCount('beforeExit') === 1) {
    process.exit();
  }
}
