// What a run shows besides text: pictures, tables and pages in frames without rights, and files that it left.
import { API, element, encoded, prefix } from "./api.js";
import { plain } from "./ansi.js";
import { preview } from "./preview.js";

const MAX_FRAME = 600; // pixels of height
const MAX_TEXT = 100_000; // characters

export function show(into, result, sandbox) {
  into.replaceChildren();
  for (const each of (result.pictures ?? []).slice(0, 16)) {
    if (!/^image\/(png|jpeg|gif|webp)$/.test(each.mime_type)) continue;
    into.append(element("img", { src: `data:${each.mime_type};base64,${each.data_base64}`, alt: "Picture of the run" }));
  }
  const displays = new Map(); // each thing in the best of its forms
  for (const each of result.displays ?? []) {
    if (each.text == null) continue;
    const forms = displays.get(each.index) ?? {};
    displays.set(each.index, { ...forms, [each.mime_type]: each.text });
  }
  for (const forms of [...displays.values(), result.result ?? {}]) {
    const html = forms["text/html"];
    const text = forms["application/json"] ?? forms["text/markdown"] ?? forms["text/plain"];
    if (html !== undefined) into.append(frame(html));
    else if (text !== undefined) into.append(element("pre", { textContent: text.slice(0, MAX_TEXT), tabIndex: 0 }));
  }
  for (const each of (result.artifacts ?? []).slice(0, 50)) {
    const href = `${API}/sandboxes/${encodeURIComponent(sandbox)}/files/${encoded(each.path)}`;
    const look = element("button", { className: "file", title: "Look at it, or download it" }, element("bdi", { textContent: plain(each.path) }));
    look.onclick = () => preview(each, href);
    into.append(look);
  }
}

/** A frame for a page that a program made. Its scripts run only if the user wants it, and without the console's rights. */
export function frame(html, scripts = false) {
  const box = element("div", { className: "made-by" }, framed(html, scripts ? "?scripts" : ""));
  if (!scripts && /<script/i.test(html)) {
    const button = element("button", { textContent: "Run its scripts", title: "They see nothing but what they show" });
    button.onclick = () => box.replaceWith(frame(html, true));
    box.append(button);
  }
  return box;
}

/** A frame that has an origin of its own, and gets what it shows once it is ready. */
export function framed(content, kind, title = "What the program made") {
  const made = element("iframe", { title, src: `${prefix}/frame${kind}` });
  made.setAttribute("sandbox", "allow-scripts");
  const listen = (event) => {
    if (!made.isConnected && event.source === null) return removeEventListener("message", listen);
    if (event.source !== made.contentWindow || typeof event.data !== "object") return;
    if (event.data?.ready) made.contentWindow.postMessage(content, "*");
    const height = Number(event.data?.height);
    if (height > 0) made.style.height = `${Math.min(MAX_FRAME, height + 20)}px`;
  };
  addEventListener("message", listen);
  return made;
}
