// The files of a sandbox: a folder at a time.
import { plain } from "./ansi.js";
import { API, element, encoded, get, Refusal, request, signInAgain, tried } from "./api.js";
import { confirmed } from "./app.js";
import { preview } from "./preview.js";

const MAX_SHOWN = 1000;
const $ = (id) => document.getElementById(id);

export class Files {
  folder = ".";

  constructor(sandbox) {
    this.address = `/sandboxes/${encodeURIComponent(sandbox)}/files`;
    $("reload").onclick = () => tried(() => this.open(this.folder));
    if ($("choose")) {
      $("choose").onclick = () => $("upload").click();
      $("upload").onchange = () => tried(() => this.upload([...$("upload").files]));
      const drop = $("drop");
      drop.ondragover = (event) => { event.preventDefault(); drop.classList.add("over"); };
      drop.ondragleave = () => drop.classList.remove("over");
      drop.ondrop = (event) => {
        event.preventDefault();
        drop.classList.remove("over");
        tried(() => this.upload([...event.dataTransfer.files]));
      };
    }
  }

  path(name) {
    return this.folder === "." ? name : `${this.folder}/${name}`;
  }

  url(path) {
    return `${API}${this.address}/${encoded(path)}`;
  }

  async open(folder) {
    let entries;
    try {
      ({ entries } = await get(`${this.address}?limit=${MAX_SHOWN}&path=${encodeURIComponent(folder)}`));
    } catch (error) {
      if (error.problem?.error !== "session_not_found") throw error;
      entries = []; // the default sandbox, before it exists
    }
    this.folder = folder;
    this.trail();
    entries.sort((a, b) => (b.kind === "directory") - (a.kind === "directory") || a.path.localeCompare(b.path));
    $("entries").replaceChildren(...entries.map((entry) => this.row(entry)));
    if (!entries.length) {
      const cell = element("td", { colSpan: 4, textContent: "No files here. Drop some, or let a program write to /workspace." });
      $("entries").append(element("tr", { className: "none" }, cell));
    }
  }

  trail() {
    const parts = this.folder === "." ? [] : this.folder.split("/");
    const link = (label, path) => element("button", { textContent: plain(label), onclick: () => tried(() => this.open(path)) });
    $("folder").replaceChildren(link("/workspace", "."));
    parts.forEach((part, index) => $("folder").append(" / ", link(part, parts.slice(0, index + 1).join("/"))));
  }

  row(entry) {
    const name = entry.path.split("/").pop();
    const shown = plain(name);
    const isFolder = entry.kind === "directory";
    const open = () => tried(() => (isFolder ? this.open(entry.path) : preview(entry, this.url(entry.path))));
    const label = element("button", { className: isFolder ? "name folder" : "name", textContent: isFolder ? `${shown}/` : shown, onclick: open });
    const actions = element("td", { className: "end" });
    if (!isFolder) {
      const down = element("a", { href: this.url(entry.path), download: name, className: "link", textContent: "Download" });
      down.setAttribute("aria-label", `Download ${shown}`);
      actions.append(down, " ");
    }
    if ($("choose")) {
      const remove = element("button", { className: "link danger", textContent: "Delete", onclick: () => tried(() => this.remove(entry)) });
      remove.setAttribute("aria-label", `Delete ${shown}`);
      actions.append(remove);
    }
    const changed = entry.modified_at ? new Date(entry.modified_at).toLocaleString() : "";
    const head = element("th", { scope: "row" }, label);
    if (entry.kind === "symlink" || entry.unreadable) head.append(" ", element("span", { className: "tag", textContent: entry.unreadable ? "unreadable" : "link" }));
    return element("tr", {}, head, element("td", { className: "num", textContent: isFolder ? "" : bytes(entry.size) }), element("td", { className: "optional", textContent: changed }), actions);
  }

  async remove(entry) {
    if (!(await confirmed(`Delete ${plain(entry.path)}?`))) return;
    await request(`${this.address}/${encoded(entry.path)}${entry.kind === "directory" ? "?recursive=true" : ""}`, { method: "DELETE" });
    await this.open(this.folder);
  }

  async upload(files) {
    try {
      for (const file of files) await this.put(file);
    } finally {
      $("upload").value = ""; // so that the same file can be chosen again
      await this.open(this.folder).catch(() => {});
    }
  }

  /** Sends a file as it is; a connection that breaks leaves no half of it. */
  put(file) {
    const name = plain(file.name);
    const say = (text) => ($("transfer").textContent = text);
    return new Promise((resolve, reject) => {
      const sending = new XMLHttpRequest();
      sending.open("PUT", this.url(this.path(file.name)));
      sending.upload.onprogress = ({ loaded, total }) => say(`${name}: ${total ? Math.floor((100 * loaded) / total) : 100} %`);
      sending.onloadend = () => {
        say(sending.status === 201 ? `${name} is there.` : "");
        if (sending.status === 201) return resolve();
        if (sending.status === 401) signInAgain();
        let problem = { message: `${name} was not sent.`, next: "Try again." };
        try { problem = JSON.parse(sending.responseText); } catch { /* the connection broke */ }
        reject(new Refusal(problem));
      };
      sending.send(file);
    });
  }
}

export function bytes(count) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (count < 1024) return `${unit === "B" ? count : count.toFixed(1)} ${unit}`;
    count /= 1024;
  }
  return `${count.toFixed(1)} GiB`;
}
