// How `import` finds modules: what a program imports is meant from its working directory, though its file lies elsewhere,
// and global packages are found by `import` too, which Node does for `require` alone. Registered when a program imports at
// all, since it makes finding modules slower.
'use strict';

const Module = require('node:module');
const path = require('node:path');
const { pathToFileURL } = require('node:url');

let registered = false;

// With an entry, its own imports are resolved from elsewhere: `url` is the module, `parentURL` where it is meant to be.
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

// Modules that would lie beside each folder of global packages find what is in it.
function globalParents() {
  const folders = (process.env.NODE_PATH ?? '').split(path.delimiter).filter((name) => path.basename(name) === 'node_modules');
  return folders.map((name) => pathToFileURL(path.join(path.dirname(name), 'global.mjs')).href);
}

module.exports = { contexts, register };
