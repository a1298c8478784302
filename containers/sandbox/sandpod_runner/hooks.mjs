// For Node without module.registerHooks (before 22.15): the same resolution as in bootstrap.cjs, in Node's own thread.
let entry;

export function initialize(data) {
  entry = data;
}

export function resolve(specifier, context, next) {
  return next(specifier, context.parentURL === entry.url ? { ...context, parentURL: entry.parentURL } : context);
}
