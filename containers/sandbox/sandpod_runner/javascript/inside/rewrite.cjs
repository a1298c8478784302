// Makes of a cell's code what V8 runs as a line of a REPL. Pure.
//
// V8's REPL mode knows top-level `await` and the value of the last expression, but takes no `import` or `export`, and no
// second declaration of another kind. So top-level `const`, `let` and `class` become `var`, which any later cell may
// declare again; names that JavaScript or Node defines become `let`, which hides them from cells alone. Lines stay where
// they are. The parser is the one that Node's own REPL uses; where it can't parse the code, V8 decides.
'use strict';

const vm = require('node:vm');

const { strip, tidy } = require('./common.cjs');

const HOLD = '__hold__';
const IMPORT = '__import__';
const META = '__import_meta__';
const PARSER = 'internal/deps/acorn/acorn/dist/acorn'; // there with --expose-internals
const OPTIONS = {
  ecmaVersion: 'latest',
  sourceType: 'script',
  allowAwaitOutsideFunction: true,
  allowImportExportEverywhere: true,
  allowReturnOutsideFunction: true,
};
const BUILT_IN = new Set(Object.getOwnPropertyNames(globalThis));

let acorn;
try {
  acorn = require(PARSER);
} catch {
  acorn = null; // another Node: cells run, without what is made possible here
}

function parse(code) {
  try {
    return acorn?.parse(code, OPTIONS) ?? null;
  } catch {
    return null;
  }
}

function compiles(code) {
  try {
    vm.compileFunction(`return (async () => {${code}\n})()`);
    return true;
  } catch {
    return false;
  }
}

function prepare(source, file) {
  let code = tidy(source);
  if (/^\s*\{/.test(code) && !/;\s*$/.test(code)) {
    const object = `(${code}\n)`; // what can be an object is one and no block, as in Node's REPL
    const tree = parse(object);
    if (tree !== null) return edit(object, tree);
  }
  let tree = parse(code);
  if (tree === null && !compiles(code)) {
    code = strip(code, file) ?? code;
    tree = parse(code);
  }
  return tree === null ? code : edit(code, tree);
}

function edit(code, tree) {
  const edits = [];
  for (const node of tree.body) declare(node, code, edits);
  walk(tree, (node, isOwn) => {
    const awaited = node.type === 'AwaitExpression' ? node.argument : node.await ? node.right : null;
    if (awaited && isOwn) edits.push([awaited.start, awaited.start, `${HOLD}(`], [awaited.end, awaited.end, ')']);
    if (node.type === 'ImportExpression') edits.push([node.start, node.start + 'import'.length, IMPORT]);
    if (node.type === 'MetaProperty' && node.meta.name === 'import') edits.push([node.start, node.end, META]);
  });
  edits.sort((a, b) => a[0] - b[0]);
  const parts = [];
  let at = 0;
  for (const [start, end, text] of edits) {
    parts.push(code.slice(at, start), text);
    at = end;
  }
  return parts.join('') + code.slice(at);
}

function declare(node, code, edits) {
  const lines = () => code.slice(node.start, node.end).replace(/[^\n]/g, '');
  switch (node.type) {
    case 'VariableDeclaration':
      if (node.kind !== 'let' && node.kind !== 'const') return; // `using` is tied to its block
      edits.push([node.start, node.start + node.kind.length, keyword(node.declarations.flatMap((each) => names(each.id)))]);
      for (const { id, init } of node.declarations) {
        if (init === null) edits.push([id.end, id.end, ' = void 0']); // and not what an earlier cell gave it
      }
      return;
    case 'ClassDeclaration':
      edits.push([node.start, node.start, `${keyword([node.id.name])} ${node.id.name} = `], [node.end, node.end, ';']);
      return;
    case 'ImportDeclaration':
      edits.push([node.start, node.end, importing(node) + lines()]);
      return;
    case 'ExportNamedDeclaration':
    case 'ExportDefaultDeclaration':
      if (node.declaration?.type.endsWith('Declaration') && node.declaration.id !== null) {
        edits.push([node.start, node.declaration.start, '']);
        declare(node.declaration, code, edits);
      } else if (node.declaration) {
        edits.push([node.start, node.declaration.start, 'void ']);
      } else {
        edits.push([node.start, node.end, `;${lines()}`]);
      }
      return;
    case 'ExportAllDeclaration':
      edits.push([node.start, node.end, `;${lines()}`]);
  }
}

function importing({ specifiers, source, attributes = [] }) {
  const wanted = attributes.map(({ key, value }) => `${JSON.stringify(key.name ?? key.value)}: ${value.raw}`);
  const call = `await ${IMPORT}(${source.raw}${wanted.length ? `, { with: { ${wanted.join(', ')} } }` : ''})`;
  if (specifiers.length === 0) return `void ${call};`;
  const word = keyword(specifiers.map(({ local }) => local.name));
  const space = specifiers.find(({ type }) => type === 'ImportNamespaceSpecifier');
  const picked = specifiers
    .filter((each) => each !== space)
    .map(({ imported, local }) => `${imported ? (imported.raw ?? imported.name) : 'default'}: ${local.name}`);
  const bindings = [];
  if (space) bindings.push(`${space.local.name} = ${call}`);
  if (picked.length) bindings.push(`{ ${picked.join(', ')} } = ${space ? space.local.name : call}`);
  return `${word} ${bindings.join(', ')};`;
}

function keyword(declared) {
  return declared.some((name) => BUILT_IN.has(name)) ? 'let' : 'var';
}

function names(pattern) {
  switch (pattern?.type) {
    case 'Identifier':
      return [pattern.name];
    case 'ObjectPattern':
      return pattern.properties.flatMap((each) => names(each.value ?? each));
    case 'ArrayPattern':
      return pattern.elements.flatMap(names);
    case 'AssignmentPattern':
      return names(pattern.left);
    case 'RestElement':
      return names(pattern.argument);
    default:
      return [];
  }
}

// Each node before those in it, and whether it is the cell's own: what functions await is theirs. Without recursion: sums
// of a thousand parts are that deep.
function walk(tree, visit) {
  const todo = [[tree, true]];
  while (todo.length) {
    const [node, isOwn] = todo.pop();
    visit(node, isOwn);
    for (const part of Object.values(node)) {
      for (const each of Array.isArray(part) ? part : [part]) {
        if (typeof each?.type === 'string') todo.push([each, isOwn && !('params' in node)]);
      }
    }
  }
}

module.exports = { HOLD, IMPORT, META, prepare };
