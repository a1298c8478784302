// For Node without module.registerHooks (before 22.15): the same as in common.cjs, in Node's own thread.
import { contexts } from './common.cjs';

let entry;

export function initialize(data) {
  entry = data;
}

export async function resolve(specifier, context, next) {
  let failure;
  for (const each of contexts(specifier, context, entry)) {
    try {
      return await next(specifier, each);
    } catch (error) {
      failure ??= error;
      if (failure?.code !== 'ERR_MODULE_NOT_FOUND') break;
    }
  }
  throw failure;
}
