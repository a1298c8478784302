// Shows a PDF as pictures of its pages, in a frame that has no rights: the page around it sends it once. A browser's own
// viewer runs in no sandboxed frame, runs a document's scripts and follows its links; here nothing can do either.
import * as pdf from "./vendor/pdfjs.js";
import * as worker from "./vendor/pdfjs-worker.js";

const MAX_PAGES = 50;
const MAX_PIXELS = 4_000_000; // of a page, whatever size it says that it has
const MAX_TEXT = 5000; // characters of a page, for who can't see it
globalThis.pdfjsWorker = worker; // an origin of its own has no worker; the frame has a process of its own instead

const made = (name, properties) => document.body.appendChild(Object.assign(document.createElement(name), properties));

async function draw(page, label) {
  const plain = page.getViewport({ scale: 1 });
  const wanted = (document.body.clientWidth * devicePixelRatio) / plain.width;
  const viewport = page.getViewport({ scale: Math.min(wanted, Math.sqrt(MAX_PIXELS / (plain.width * plain.height))) });
  const canvas = made("canvas", { width: Math.ceil(viewport.width), height: Math.ceil(viewport.height), role: "img" });
  canvas.style.cssText = "display:block;width:100%;margin-bottom:8px;box-shadow:0 0 4px #0004";
  await page.render({ canvas, viewport, annotationMode: pdf.AnnotationMode.DISABLE }).promise;
  const { items } = await page.getTextContent();
  canvas.setAttribute("aria-label", `${label}: ${items.map(({ str }) => str).join(" ")}`.slice(0, MAX_TEXT));
}

async function show(data) {
  try {
    const shown = await pdf.getDocument({ data, useSystemFonts: true, enableXfa: false, useWasm: false, useWorkerFetch: false, isEvalSupported: false }).promise;
    for (let number = 1; number <= Math.min(MAX_PAGES, shown.numPages); number += 1) {
      await draw(await shown.getPage(number), `Page ${number} of ${shown.numPages}`);
    }
    if (shown.numPages > MAX_PAGES) made("p", { textContent: `The first ${MAX_PAGES} of ${shown.numPages} pages.` });
  } catch (error) {
    made("p", { textContent: `The file can't be shown: ${error.name === "PasswordException" ? "it has a password" : "it is no PDF that can be read"}.` });
  }
  parent.postMessage({ done: true }, "*");
}

addEventListener("message", ({ source, data }) => source === parent && data instanceof ArrayBuffer && show(data), { once: true });
parent.postMessage({ ready: true }, "*");
