// For Node without module.registerHooks (before 22.15): the same as in resolution.cjs, in Node's own thread.
let entry;

export function initialize(data) {
  entry = data;
}

export async function resolve(specifier, context, next) {
  const meant = entry.url && context.parentURL === entry.url ? { ...context, parentURL: entry.parentURL } : context;
  try {
    return await next(specifier, meant);
  } catch (error) {
    if (error?.code !== 'ERR_MODULE_NOT_FOUND' || /^[./]|^[a-z]+:/.test(specifier)) throw error;
    for (const parentURL of entry.parents) {
      try {
        return await next(specifier, { ...context, parentURL });
      } catch {
        continue;
      }
    }
    throw error;
  }
}
