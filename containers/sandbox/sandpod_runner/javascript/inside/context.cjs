// A JavaScript context in its own process: it runs one cell after the other, and variables stay.
//
// Started by context_helper.py, which sends each cell on descriptor 3, as a line of JSON, and keeps the cell's descriptors
// open until it gets a byte back. An interrupt is a signal while the helper knows that Node takes it, or else a line with
// null; `guarded` reports it, and gets its answers on descriptor 5. On descriptor 4 the runner gets what jobs.py describes:
// one message when the cell's code begins and one when it has ended. A cell is code for V8's own REPL mode; rewrite.cjs
// makes it so.
'use strict';

const { Buffer } = require('node:buffer'); // programs may put others in the places of globals
const fs = require('node:fs');
const inspector = require('node:inspector');
const Module = require('node:module');
const net = require('node:net');
const path = require('node:path');
const process = require('node:process');
const { setImmediate } = require('node:timers');
const { pathToFileURL } = require('node:url');
const util = require('node:util');
const vm = require('node:vm');

const { register, silence, usage } = require('./common.cjs');
const { HOLD, IMPORT, META, prepare } = require('./rewrite.cjs');
const streams = require('./streams.cjs');
const { describe, describeSyntax, forms } = require('./values.cjs');

const HELPER = 3;
const RUNNER = 4;
const ANSWERS = 5;
const [ENTERED, LEAVING, LEFT, INTERRUPTED] = '{}!x'; // as in context_helper.py
const BEGUN = 0; // Kind.READY and Kind.EXITED of jobs.py
const ENDED = 3;
const RESULT = 1; // RecordKind.RESULT and RecordKind.DROPPED of display_records.py
const DROPPED = 2;
const MIME_TYPES = { 'text/plain': 0, 'application/json': 5 }; // their places in messages.py
const TAKE = '__take__';
const LEAVE = new Error('process.exit() was called'); // takes the program out of what it does

const heard = Buffer.alloc(1);
const forever = new Int32Array(new SharedArrayBuffer(4));
const guardScript = new vm.Script('globalThis[Symbol.for("sandpod.guard")]()');
let action;
Object.defineProperty(globalThis, Symbol.for('sandpod.guard'), { value: () => action() });
const { readSync, writeSync } = fs;
const { parse } = JSON;
let cells = 0;
let current = null;
let folder;

// It is evaluated by V8's own protocol, which has the REPL mode, in a session of its own: when that is closed, V8 waits for
// nothing of the cell any more. It answers even while it collects garbage, which no JavaScript lives through, when it
// finds that what is awaited can never come. So what the cell awaits is held.
class Cell {
  constructor(job) {
    this.job = job;
    this.session = new inspector.Session();
    this.session.connect();
    globalThis[TAKE] = (value) => { this.taken = value; };
    this.session.post('Runtime.evaluate', { expression: TAKE }, (error, { result }) => { this.taker = result.objectId; });
    delete globalThis[TAKE];
    this.held = new Set();
    this.file = `<cell-${(cells += 1)}>`;
    this.over = false;
    this.status = null; // what process.exit() was given
    streams.use(job.fds.slice(0, 3).map((fd) => job.base + fd));
    this.channel = fs.openSync(job.base + job.fds[3], fs.constants.O_WRONLY | fs.constants.O_NONBLOCK);
  }

  // From here on an interrupt is the cell's. Frames of the program come first in its stack traces.
  start() {
    current = this;
    this.used = usage().cpu;
    guarded(() => {
      send(BEGUN, this.job.number);
      try {
        apply(this.job);
        this.evaluate(prepare(this.job.code, this.file));
      } catch (error) {
        this.fail(String(error?.stack).split('\n    at ')[0]);
      }
    });
  }

  evaluate(code) {
    const how = { expression: `${code}\n//# sourceURL=${this.file}`, replMode: true, awaitPromise: true, silent: true };
    this.session.post('Runtime.evaluate', how, (failed, answer) => {
      if (failed || this.over) return; // interrupted, which is reported elsewhere
      const details = answer.exceptionDetails;
      const value = this.take(details?.exception ?? answer.result);
      if (details) {
        this.conclude({ error: value, details });
      } else if (util.types.isPromise(value)) {
        value.then((result) => this.conclude({ value: result }), (reason) => this.conclude({ error: reason }));
      } else {
        this.conclude({ value });
      }
    });
  }

  // Returns the value itself where V8 has given its description.
  take({ objectId, unserializableValue, value }) {
    const argument = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value };
    const functionDeclaration = 'function (value) { this(value); }';
    const call = { objectId: this.taker, functionDeclaration, arguments: [argument], silent: true };
    this.session.post('Runtime.callFunctionOn', call);
    return this.taken;
  }

  // A turn later, when Node has reported rejections that nobody handles.
  conclude(result) {
    setImmediate(() => this.settle(result));
  }

  settle(result) {
    if (this.over) return;
    if (result.error === LEAVE) {
      this.end(this.status);
      return;
    }
    let found;
    let text;
    guarded(() => { // what is shown may have code of its own for that, which never ends
      try {
        if ('error' in result) text = this.describe(result);
        else if (result.value !== undefined) found = forms(result.value);
      } catch (reason) {
        text = describe(reason);
      }
    });
    if (this.over) return; // interrupted
    if (text !== undefined) {
      this.fail(text);
      return;
    }
    this.show(found ?? []);
    this.end(Number(process.exitCode ?? 0));
  }

  describe({ error, details }) {
    return details ? describeSyntax(error, this.job.code, this.file, details) : describe(error);
  }

  show(found) {
    for (const [mime, data] of found) {
      const head = Buffer.alloc(6);
      head[0] = data === null ? DROPPED : RESULT;
      head[1] = data === null ? 0 : MIME_TYPES[mime];
      head.writeUInt32BE(data?.length ?? 0, 2);
      streams.writeAll(this.channel, data === null ? head : Buffer.concat([head, data]));
    }
  }

  fail(text) {
    if (this.over) return;
    process.stderr.write(`${text}\n`);
    this.end(1);
  }

  // The first call counts: in a process of its own there would be no second.
  leave(status) {
    if (this.status === null && !this.over) {
      this.status = status;
      streams.hush();
      setImmediate(() => this.end(status));
    }
  }

  end(status) {
    if (this.over) return;
    this.over = true;
    current = null;
    try {
      process.exitCode = undefined;
      const { cpu, size } = usage();
      streams.letGo();
      fs.closeSync(this.channel);
      this.session.disconnect();
      this.held.clear();
      send(ENDED, this.job.number, (status & 0xff) << 8, cpu - this.used, size);
    } catch {
      process.reallyExit(streams.LOST); // the program has closed or taken away what this needs
    }
  }
}

// Runs in a way that a signal ends, however busy the code is. Shortly before and after, the signal would end Node, which
// then has no handler for it: so the helper sends it only in between, and at most one. One that it has sent is waited for.
function guarded(task) {
  action = () => {
    tell(ENTERED);
    try {
      task();
    } finally {
      tell(LEAVING);
      if (answer() === INTERRUPTED) Atomics.wait(forever, 0, 0);
    }
  };
  try {
    guardScript.runInThisContext({ breakOnSigint: true, displayErrors: false });
  } catch (error) {
    if (error?.code !== 'ERR_SCRIPT_EXECUTION_INTERRUPTED') throw error;
    tell(LEFT);
    while (answer() !== LEFT); // what was asked before is answered too
    interrupt();
  }
}

function tell(word) {
  try {
    writeSync(HELPER, word);
  } catch {
    process.reallyExit(streams.LOST); // the program has closed it
  }
}

function answer() {
  try {
    if (readSync(ANSWERS, heard) === 1) return heard.toString();
  } catch {
    // as at its end
  }
  return process.reallyExit(streams.LOST);
}

function interrupt() {
  current?.fail('Interrupted: the cell was stopped before its end.');
}

// What the cell changes: variables of the environment, arguments, working directory.
function apply({ env, args, cwd }) {
  Object.assign(Object(process.env), env); // the program may have put nothing in its place
  if ('NODE_PATH' in env) Module._initPaths();
  if (args.length) process.argv = [process.execPath, process.argv[1], ...args];
  if (cwd) process.chdir(cwd);
  let now = folder ?? '/';
  try {
    now = process.cwd();
  } catch {
    // The program has removed it, and must be able to go elsewhere.
  }
  if (folder !== now) moveTo(now);
}

// What a program finds in its file's scope is global here, and means the working directory.
function moveTo(cwd) {
  folder = cwd;
  const file = path.join(cwd, 'cell.js');
  const main = Object.assign(new Module(file), { filename: file, paths: Module._nodeModulePaths(cwd) });
  const require = Module.createRequire(file);
  const options = { filename: file, importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER };
  const load = vm.compileFunction('register(); return import(name, options)', ['register', 'name', 'options'], options);
  const meta = { dirname: cwd, filename: file, url: pathToFileURL(file).href, resolve: (name) => pathToFileURL(require.resolve(name)).href };
  const shared = { require, module: main, exports: main.exports, __dirname: cwd, __filename: file };
  const hold = (value) => { current?.held.add(value); return value; };
  for (const [name, value] of Object.entries({ ...shared, [HOLD]: hold, [IMPORT]: load.bind(undefined, register), [META]: meta })) {
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  }
}

function send(kind, number, status = 0, cpu = 0, size = 0) {
  const message = Buffer.alloc(36); // "=iqiidq"
  message.writeInt32LE(kind, 0);
  message.writeBigInt64LE(BigInt(number), 4);
  message.writeInt32LE(status, 16);
  message.writeDoubleLE(cpu, 20);
  message.writeBigInt64LE(BigInt(size), 28);
  fs.writeSync(RUNNER, message);
}

function serve() {
  silence();
  process.argv = [process.execPath, '<cell>'];
  process.execArgv = [];
  process.exit = (code) => {
    if (code !== undefined) process.exitCode = code; // which checks it
    current?.leave(Number(process.exitCode ?? 0));
    throw LEAVE;
  };
  process.on('SIGINT', interrupt);
  process.on('uncaughtException', (error) => {
    // A listener of the program's own decides, as it would without this one.
    if (error !== LEAVE && process.listenerCount('uncaughtException') === 1) current?.fail(describe(error));
  });
  const link = new net.Socket({ fd: HELPER });
  let parts = [];
  link.on('data', (data) => {
    parts.push(data);
    if (data.at(-1) !== 10) return; // the helper sends no cell before the last one has ended
    try {
      const lines = Buffer.concat(parts).toString().split('\n');
      parts = [];
      for (const line of lines.slice(0, -1)) take(parse(line), link);
    } catch {
      process.reallyExit(streams.LOST); // there are no streams to report it on, or the program took away what this needs
    }
  });
  link.on('close', () => process.reallyExit(0));
}

function take(job, link) {
  if (job === null) {
    interrupt();
    return;
  }
  const cell = new Cell(job);
  link.write('\n');
  setImmediate(() => cell.start());
}

serve();
