// What every page has: times that go on, filters, dialogs, copying, and polls that rest while nobody looks.
const MAX_ROWS = 200; // at a time, as parts.css has it
const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

function distance(seconds, kind) {
  const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= size) ?? ["s", 1];
  const text = `${Math.max(0, Math.floor(Math.abs(seconds) / size))} ${unit}`;
  if (kind === "age") return text;
  return seconds > 0 ? `in ${text}` : `${text} ago`;
}

function tick(root = document) {
  for (const time of root.querySelectorAll("tr:not([hidden]) time[data-when], :is(dl, .now) time[data-when]")) {
    const text = distance((Date.parse(time.dateTime) - Date.now()) / 1000, time.dataset.when);
    if (time.textContent !== text) time.textContent = text;
  }
}

function filter() {
  const input = document.querySelector("[data-filter]");
  if (!input) return;
  const wanted = input.value.trim().toLowerCase();
  const rows = [...document.querySelectorAll(`${input.dataset.filter} > tr:not(.none)`)];
  let found = 0;
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted) || ++found > MAX_ROWS;
  document.querySelector(input.dataset.filter).classList.toggle("chosen", wanted !== "");
  const counted = wanted ? `${found} of ${rows.length}` : rows.length ? `${rows.length} in all` : "";
  const cut = found > MAX_ROWS ? `; the newest ${MAX_ROWS} are shown, the filter finds the others` : "";
  document.querySelector("#count").textContent = counted + cut;
}

/** Shows a refusal as the server's own parts of pages do. */
export function notice(problem) {
  const box = document.createElement("div");
  box.className = "problem";
  const text = document.createElement("p");
  const strong = document.createElement("strong");
  strong.textContent = problem.message ?? problem.detail ?? String(problem);
  text.append(strong, ` ${problem.next ?? ""}`);
  const close = document.createElement("button");
  close.className = "link";
  close.dataset.dismiss = "";
  close.setAttribute("aria-label", "Dismiss");
  close.textContent = "✕";
  box.append(text, close);
  document.querySelector("#notice").replaceChildren(box);
}

/** Asks the user; true if it may be done. */
export function confirmed(question) {
  const dialog = document.querySelector("#confirm");
  dialog.querySelector("p").textContent = question;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

document.addEventListener("click", async (event) => {
  const target = event.target.closest("[data-open], [data-close], [data-copy], [data-dismiss]");
  if (!target) return;
  if (target.dataset.open) document.querySelector(target.dataset.open).showModal();
  else if ("close" in target.dataset) target.closest("dialog").close();
  else if ("dismiss" in target.dataset) document.querySelector("#notice").replaceChildren();
  else {
    target.textContent = (await copied(document.querySelector(target.dataset.copy))) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (target.textContent = "Copy"), 1500);
  }
});

async function copied(source) {
  try {
    await navigator.clipboard.writeText(source.textContent);
    return true;
  } catch { // no TLS, or not allowed: what is selected can be copied by hand
    getSelection().selectAllChildren(source);
    return false;
  }
}

// One listener for all rows: there may be a thousand. What is done is told to all that shows sandboxes.
document.addEventListener("click", async ({ target }) => {
  const { "delete": sandbox, act, of } = target.dataset ?? {};
  const label = target.getAttribute?.("aria-label");
  const { prefix } = document.body.dataset;
  if (sandbox) {
    if (!(await confirmed(`${label}? What runs in it is stopped, and its files are deleted.`))) return;
    htmx.ajax("DELETE", `${target.closest("[data-base]").dataset.base}/${encodeURIComponent(sandbox)}`, {});
  } else if (act === "extend") {
    const dialog = document.querySelector("#extend");
    dialog.querySelector("[name=sandbox]").value = of;
    dialog.showModal();
  } else if (act) {
    if (act === "suspend" && !(await confirmed(`${label}? What runs in it is stopped; its files are kept.`))) return;
    target.disabled = true; // a pod takes some seconds
    await htmx.ajax("POST", `${prefix}/act/${act}`, { values: { sandbox: of } }).catch(() => {});
    target.disabled = false;
  }
});
document.addEventListener("pointerover", ({ target }) => {
  if (target.matches("time[data-when]")) target.title = new Date(target.dateTime).toLocaleString();
});

document.addEventListener("input", (event) => event.target.matches("[data-filter]") && filter());
document.addEventListener("change", (event) => event.target.closest("form[data-submit]")?.requestSubmit());
document.addEventListener("keydown", (event) => {
  const writing = event.target.closest("input, textarea, select, [contenteditable], .xterm");
  if (event.key === "/" && !writing && document.querySelector("[data-filter]")) {
    event.preventDefault();
    document.querySelector("[data-filter]").focus();
  }
});

// A poll costs the server something, however little.
document.addEventListener("htmx:beforeRequest", (event) => {
  const { target, detail: { requestConfig } } = event;
  const timed = requestConfig.triggeringEvent?.type === "hx:poll:trigger";
  const rests = document.hidden || document.querySelector("dialog[open]");
  if ((timed && rests) || ("poll" in target.dataset && !target.checkVisibility())) event.preventDefault();
});
document.addEventListener("htmx:confirm", async (event) => {
  if (!event.detail.question) return;
  event.preventDefault();
  if (await confirmed(event.detail.question)) event.detail.issueRequest(true);
});
document.addEventListener("htmx:afterSwap", () => { tick(); filter(); });
document.addEventListener("htmx:oobAfterSwap", ({ target }) => tick(target));
document.addEventListener("htmx:afterRequest", (event) => {
  const dialog = event.target.closest("dialog");
  if (dialog && !event.detail.failed && event.detail.successful) {
    dialog.close();
    event.target.reset?.();
  } else if (dialog) dialog.append(document.querySelector("#notice")); // else it is behind the dialog
});
document.addEventListener("close", (event) => event.target.contains(document.querySelector("#notice")) && document.body.append(document.querySelector("#notice")), true);
let unreached = null; // what says so, until the server answers again
document.addEventListener("htmx:sendError", () => {
  notice({ message: "The server can't be reached.", next: "Try again in a moment." });
  unreached = document.querySelector("#notice").firstElementChild;
});
document.addEventListener("htmx:afterRequest", ({ detail }) => detail.xhr.status && unreached?.remove());

tick();
filter();
setInterval(() => document.hidden || tick(), 1000);
