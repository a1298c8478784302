// The standard streams of a cell, in Node: descriptors 0, 1 and 2 are put in place at its beginning and let go of at its
// end.
//
// Node has no dup2: a descriptor is closed and the next file that is opened takes its number, the lowest that is free.
'use strict';

const console = require('node:console');
const fs = require('node:fs');
const net = require('node:net');
const process = require('node:process');
const { Writable } = require('node:stream');

const { O_NONBLOCK, O_RDONLY, O_WRONLY } = fs.constants;
const LOST = 70;
const PAUSE_MS = 1;
const bell = new Int32Array(new SharedArrayBuffer(4)); // never rung: waiting for it is a pause

// Writes at once, so that nothing is left to be lost, and waits in a way that an interrupt ends.
function writeAll(fd, data) {
  for (let at = 0; at < data.length; ) {
    try {
      at += fs.writeSync(fd, data, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') return; // nobody reads it any more
      Atomics.wait(bell, 0, 0, PAUSE_MS);
    }
  }
}

class Output extends Writable {
  constructor(fd, file) {
    super();
    this.fd = fd;
    // Opened once more: descriptors 1 and 2 block, as programs that are started expect.
    this.own = fs.openSync(file, O_WRONLY | O_NONBLOCK);
  }

  _write(chunk, encoding, done) {
    writeAll(this.own >= 0 ? this.own : this.fd, chunk);
    done();
  }

  release() {
    fs.closeSync(this.own);
    this.own = -1;
  }
}

let stdin;
let outputs = [];

function put(number, file) {
  fs.closeSync(number);
  const flags = number === 0 ? O_RDONLY : O_WRONLY;
  // A thread of the program may have been quicker. What it opened is not to be written to, so this process ends.
  if (fs.openSync(file, flags) !== number) process.reallyExit(LOST);
}

function use(files) {
  for (const number of [0, 1, 2]) put(number, files[number]);
  outputs = [new Output(1, files[1]), new Output(2, files[2])];
  [console._stdout, console._stderr] = outputs;
}

function letGo() {
  stdin?.destroy();
  stdin = undefined;
  for (const output of outputs) output.release();
  for (const number of [0, 1, 2]) put(number, '/dev/null');
}

// Nothing more is written: what a program does after process.exit() would not have happened.
function hush() {
  for (const output of outputs) output._write = (chunk, encoding, done) => done();
}

function input() {
  if (stdin === undefined) {
    stdin = fs.fstatSync(0).isFIFO()
      ? new net.Socket({ fd: 0, readable: true, writable: false, manualStart: true })
      : new fs.ReadStream(null, { fd: 0, autoClose: false });
    stdin.fd = 0;
  }
  return stdin;
}

const got = (get) => ({ configurable: true, enumerable: true, get });
const streams = { stdin: got(input), stdout: got(() => outputs[0]), stderr: got(() => outputs[1]) };
Object.defineProperties(process, streams);

module.exports = { LOST, hush, letGo, use, writeAll };
