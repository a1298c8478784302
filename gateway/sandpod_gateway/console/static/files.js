// The files of a sandbox: a folder at a time.
import { API, element, encoded, get, request, tried } from "./api.js";
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
    const link = (label, path) => element("button", { textContent: label, onclick: () => tried(() => this.open(path)) });
    $("folder").replaceChildren(link("/workspace", "."));
    parts.forEach((part, index) => $("folder").append(" / ", link(part, parts.slice(0, index + 1).join("/"))));
  }

  row(entry) {
    const name = entry.path.split("/").pop();
    const isFolder = entry.kind === "directory";
    const open = () => tried(() => (isFolder ? this.open(entry.path) : preview(entry, this.url(entry.path))));
    const label = element("button", { className: isFolder ? "name folder" : "name", textContent: isFolder ? `${name}/` : name, onclick: open });
    const actions = element("td", { className: "end" });
    if (!isFolder) {
      const down = element("a", { href: this.url(entry.path), download: name, textContent: "Download" });
      down.setAttribute("aria-label", `Download ${name}`);
      actions.append(down, " ");
    }
    if ($("choose")) {
      const remove = element("button", { className: "link danger", textContent: "Delete", onclick: () => tried(() => this.remove(entry)) });
      remove.setAttribute("aria-label", `Delete ${name}`);
      actions.append(remove);
    }
    const changed = entry.modified_at ? new Date(entry.modified_at).toLocaleString() : "";
    const head = element("th", { scope: "row" }, label);
    if (entry.kind === "symlink" || entry.unreadable) head.append(" ", element("span", { className: "tag", textContent: entry.unreadable ? "unreadable" : "link" }));
    return element("tr", {}, head, element("td", { className: "num", textContent: isFolder ? "" : bytes(entry.size) }), element("td", { textContent: changed }), actions);
  }

  async remove(entry) {
    if (!(await confirmed(`Delete ${entry.path}?`))) return;
    await request(`${this.address}/${encoded(entry.path)}${entry.kind === "directory" ? "?recursive=true" : ""}`, { method: "DELETE" });
    await this.open(this.folder);
  }

  async upload(files) {
    for (const file of files) {
      await this.put(file);
    }
    $("upload").value = "";
    await this.open(this.folder);
  }

  /** Sends a file as it is; a connection that breaks leaves no half of it. */
  put(file) {
    return new Promise((resolve, reject) => {
      const sending = new XMLHttpRequest();
      sending.open("PUT", this.url(this.path(file.name)));
      sending.upload.onprogress = (event) => {
        $("transfer").textContent = `${file.name}: ${Math.floor((100 * event.loaded) / event.total)} %`;
      };
      sending.onloadend = () => {
        $("transfer").textContent = sending.status === 201 ? `${file.name} is there.` : "";
        if (sending.status === 201) return resolve();
        let problem = { message: `${file.name} was not sent.`, next: "Try again." };
        try { problem = JSON.parse(sending.responseText); } catch { /* the connection broke */ }
        reject(Object.assign(new Error(problem.message), { problem }));
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
