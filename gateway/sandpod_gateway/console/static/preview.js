// A look at a file: as text, table or picture, never as a page of this origin.
import { element, request } from "./api.js";
import { plain } from "./ansi.js";
import { bytes } from "./files.js";
import { frame, framed } from "./shown.js";

const MAX_READ = 256 * 1024; // bytes
const MAX_PAGE = 8 * 1024 * 1024; // bytes: figures bring the library that draws them
const MAX_PDF = 32 * 1024 * 1024; // bytes, which the browser holds twice
const MAX_ROWS = 500;
const MAX_COLUMNS = 50;
const $ = (id) => document.getElementById(id);

export async function preview(entry, url) {
  const body = $("preview-body");
  const name = entry.path.split("/").pop();
  const type = entry.mime_type ?? "";
  $("preview-title").textContent = plain(name);
  Object.assign($("preview-download"), { href: url, download: name });
  body.replaceChildren("Loading…");
  if (!$("preview").open) $("preview").showModal();
  try {
    if (/^image\/(png|jpeg|gif|webp)$/.test(type)) body.replaceChildren(element("img", { src: url, alt: plain(name) }));
    else if (type === "application/pdf") body.replaceChildren(await pdf(entry, url, name));
    else body.replaceChildren(...(await text(entry, url, type)));
  } catch (error) {
    body.replaceChildren(element("p", { className: "problem", textContent: `${error.problem?.message ?? error.message} ${error.problem?.next ?? ""}` }));
  }
}

async function pdf(entry, url, name) {
  if (entry.size > MAX_PDF) return element("p", { className: "muted", textContent: `A PDF of ${bytes(entry.size)} is too large to be shown here: download it.` });
  const answer = await request(url.replace("/api/v1", ""));
  return framed(await answer.arrayBuffer(), "?pdf", plain(name));
}

async function text(entry, url, type) {
  if (!entry.size) return [element("p", { className: "muted", textContent: "The file is empty." })];
  const answer = await request(url.replace("/api/v1", ""), { headers: { Range: `bytes=0-${(type === "text/html" ? MAX_PAGE : MAX_READ) - 1}` } });
  const data = new Uint8Array(await answer.arrayBuffer());
  const content = new TextDecoder().decode(data);
  const parts = [];
  if (entry.size > data.length) parts.push(element("p", { className: "muted", textContent: `The first ${bytes(data.length)} of ${bytes(entry.size)}:` }));
  if (data.subarray(0, 8192).includes(0)) return [element("p", { className: "muted", textContent: `No text: ${bytes(entry.size)} of ${type || "an unknown type"}.` })];
  if (type === "text/html") parts.push(frame(content));
  if (type === "text/csv" || type === "text/tab-separated-values") parts.push(table(content, type === "text/csv" ? "," : "\t"));
  else parts.push(element("pre", { textContent: plain(type === "application/json" ? indented(content) : content.slice(0, MAX_READ)) }));
  return parts;
}

function indented(content) {
  try {
    return JSON.stringify(JSON.parse(content), null, 2);
  } catch {
    return content;
  }
}

function table(content, separator) {
  const made = element("table");
  for (const [index, cells] of rows(content, separator).entries()) {
    const name = index ? "td" : "th";
    made.append(element("tr", {}, ...cells.slice(0, MAX_COLUMNS).map((text) => element(name, { textContent: plain(text.slice(0, 500)) }))));
  }
  return made;
}

/** The first rows of CSV (RFC 4180). */
function rows(content, separator) {
  const found = [];
  let cells = [], cell = "", quoted = false;
  for (let at = 0; at < content.length && found.length < MAX_ROWS; at += 1) {
    const char = content[at];
    if (quoted) {
      if (char !== '"') cell += char;
      else if (content[at + 1] === '"') cell += content[at += 1];
      else quoted = false;
    } else if (char === '"' && !cell) quoted = true;
    else if (char === separator) { cells.push(cell); cell = ""; }
    else if (char === "\n") { found.push([...cells, cell.replace(/\r$/, "")]); cells = []; cell = ""; }
    else cell += char;
  }
  if (cell || cells.length) found.push([...cells, cell]);
  return found;
}
