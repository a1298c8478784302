// What is done to the text of a program before it is compiled. It runs nothing.
'use strict';

const Module = require('node:module');

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

module.exports = { quietly, silence, strip, tidy };
