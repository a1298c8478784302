// The forms of a cell's last value, and how an error is shown.
'use strict';

const { Buffer } = require('node:buffer');
const util = require('node:util');

const { stringify } = JSON;
const MAX_RESULT = 512 * 1024; // as in messages.py
const MAX_PARTS = 100_000;
const MAX_DEPTH = 200;
// How a cell is called from: nothing of the program.
const OWN_FRAMES = /\n +at Session\.post \(node:inspector[^\n]*(?:\n +at [^\n]*)*/g;

// Type and bytes of each form, plain text first; null for bytes that are too many. What inspecting throws is thrown.
function forms(value) {
  const found = [['text/plain', clipped(util.inspect(value))]];
  const budget = { parts: MAX_PARTS, text: 0 };
  if (isData(value, budget, 0)) {
    const data = budget.text > MAX_RESULT ? null : Buffer.from(stringify(value));
    found.push(['application/json', data?.length > MAX_RESULT ? null : data]);
  }
  return found;
}

function clipped(text) {
  const data = Buffer.from(text);
  if (data.length <= MAX_RESULT) return data;
  const note = Buffer.from(`... (${data.length} bytes in all)`);
  let end = MAX_RESULT - note.length;
  while ((data[end] & 0xc0) === 0x80) end -= 1; // not within a character
  return Buffer.concat([data.subarray(0, end), note]);
}

// Whether JSON says all that the value is. Looks at nothing that could run code, and counts the characters.
function isData(value, budget, depth) {
  budget.parts -= 1;
  if (budget.parts < 0 || depth > MAX_DEPTH) return false;
  if (typeof value === 'string') budget.text += value.length;
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return true;
  if (typeof value === 'number') return Number.isFinite(value);
  if (typeof value !== 'object' || util.types.isProxy(value)) return false;
  const list = Array.isArray(value);
  const kind = Object.getPrototypeOf(value);
  if (list ? kind !== Array.prototype : kind !== Object.prototype && kind !== null) return false;
  if (list && value.length > budget.parts) return false;
  const keys = Reflect.ownKeys(value);
  if (list && keys.length !== value.length + 1) return false; // holes, or more than a list
  return keys.every((key) => {
    if (!list) budget.text += key.length ?? 0; // a symbol has none
    const { value: part, enumerable, get, set } = Object.getOwnPropertyDescriptor(value, key);
    if (list && key === 'length') return true;
    return typeof key === 'string' && key !== 'toJSON' && enumerable && !get && !set && isData(part, budget, depth + 1);
  });
}

// An error as Node shows it, without the frames from which the cell was called.
function describe(error) {
  let text;
  try {
    trim(error, new Set());
    text = util.inspect(error);
  } catch {
    text = 'an error that can not be shown'; // showing it runs code of its own
  }
  // Brackets stand around an error without frames.
  return util.types.isNativeError(error) ? text.replace(/^\[([^]*)\]$/, '$1') : `Uncaught ${text}`;
}

// Takes these frames out of the error itself and of those that it came from, as programs may show it too.
function trim(error, seen) {
  if (!util.types.isNativeError(error) || seen.has(error)) return;
  seen.add(error);
  error.stack = String(error.stack).replace(OWN_FRAMES, '');
  trim(error.cause, seen);
  for (const each of error.errors ?? []) trim(each, seen);
}

// The same of code that does not compile: V8 reports where, but not in the error itself.
function describeSyntax(error, code, file, { lineNumber, columnNumber }) {
  const text = describe(error);
  if (!(error instanceof SyntaxError) || text.includes('\n    at ')) return text;
  const line = code.split('\n')[lineNumber] ?? '';
  const margin = line.slice(0, columnNumber).replace(/\S/g, ' ');
  return `${file}:${lineNumber + 1}\n${line}\n${margin}^\n\n${text}`;
}

module.exports = { describe, describeSyntax, forms };
