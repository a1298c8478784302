// What the processes of programs and of contexts have in common: a program's text before it is compiled, how `import`
// finds modules, and what the process has used.
'use strict';

const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const process = require('node:process');
const { pathToFileURL } = require('node:url');

const TICK = 0.01; // seconds: the kernel counts children's time so
let registered = false;

// Node warns of what is new to it, which no program can do anything about.
function quietly(action) {
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    return action();
  } finally {
    process.emitWarning = emitWarning;
  }
}

// The same of the loader that import() needs here, whenever the program uses it first.
function silence() {
  const { emitWarning } = process;
  process.emitWarning = (warning, ...rest) => {
    if (!String(warning).includes('USE_MAIN_CONTEXT_DEFAULT_LOADER')) emitWarning.call(process, warning, ...rest);
  };
}

// Without the mark that some editors write, and with a first line for shells as a comment.
function tidy(code) {
  return code.replace(/^\uFEFF/, '').replace(/^#!/, '//');
}

// TypeScript without its types, with every line and column where it was; null for what is none, or has none.
// What Node can't strip (an enum, say) is thrown as the program's own error.
function strip(code, name) {
  if (!Module.stripTypeScriptTypes) return null; // before Node 22.13
  try {
    const plain = quietly(() => Module.stripTypeScriptTypes(code));
    return plain === code ? null : plain;
  } catch (error) {
    if (error?.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') return null;
    error.stack = name + error.stack.split('\n    at ')[0]; // which begins with the line's number
    throw error;
  }
}

// Global packages are found by `import` too, which Node does for `require` alone. With an entry, what it imports is meant
// from the working directory, though its file lies elsewhere: `url` is the module, `parentURL` where it is meant to be.
// Registered when a program imports at all, since it makes finding modules slower.
function register(entry = {}) {
  if (registered) return;
  registered = true;
  if (!Module.registerHooks) {
    // Before Node 22.15: in a thread of Node's own, which takes a while.
    Module.register('./hooks.mjs', pathToFileURL(__filename), { data: { ...entry, parents: globalParents() } });
    return;
  }
  Module.registerHooks({
    resolve(specifier, context, next) {
      let failure;
      for (const each of contexts(specifier, context, entry)) {
        try {
          return next(specifier, each);
        } catch (error) {
          failure ??= error;
          if (failure?.code !== 'ERR_MODULE_NOT_FOUND') break;
        }
      }
      throw failure;
    },
  });
}

// Yields the contexts in which a module is looked for, one after the other.
function* contexts(specifier, context, { url, parentURL, parents }) {
  yield url && context.parentURL === url ? { ...context, parentURL } : context;
  if (/^[./]|^[a-z]+:/.test(specifier)) return; // no package
  for (const each of parents ?? globalParents()) yield { ...context, parentURL: each };
}

// Modules that would lie next to each folder of global packages find what is in it.
function globalParents() {
  const folders = (process.env?.NODE_PATH ?? '').split(path.delimiter).filter((name) => path.basename(name) === 'node_modules');
  return folders.map((name) => pathToFileURL(path.join(path.dirname(name), 'global.mjs')).href);
}

// Seconds of processor time, those of children that have ended included, and the peak of memory in bytes.
function usage() {
  const { user, system } = process.cpuUsage();
  const fields = fs.readFileSync('/proc/self/stat', 'latin1').split(') ').at(-1).split(' ');
  const children = (Number(fields[13]) + Number(fields[14])) * TICK;
  return { cpu: (user + system) / 1e6 + children, size: process.resourceUsage().maxRSS * 1024 };
}

module.exports = { contexts, quietly, register, silence, strip, tidy, usage };
