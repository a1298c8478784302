// A sandbox's page: what is in its tabs.
import { tried } from "./api.js";
import { allowStyles } from "./styles.js";
import { editor } from "./editor.js";
import { Files } from "./files.js";
import { Runs } from "./runs.js";

allowStyles();
const work = document.getElementById("work");
const sandbox = work.dataset.sandbox;
const tabs = [...work.querySelectorAll("[role=tab]")];
const begun = {};
const draft = `draft:${sandbox}`;

const start = {
  code: () => {
    const language = document.getElementById("language").value;
    const text = sessionStorage.getItem(draft) ?? (language === "python" ? 'print("Hello from Sandpod")\n' : "");
    let runs = null;
    const program = editor(document.getElementById("editor"), { text, language, run: () => runs.start() });
    runs = new Runs(sandbox, { editor: program });
    addEventListener("pagehide", () => { // such as for a session that has ended
      try {
        sessionStorage.setItem(draft, program.text);
      } catch { /* no room: it lasts as long as the page */ }
    });
    if (!work.hasAttribute("data-rests")) tried(() => runs.refresh()); // to ask would resume it
    return { shown: (focus) => focus && program.focus() };
  },
  files: () => {
    const files = new Files(sandbox);
    return { shown: () => tried(() => files.open(files.folder)) };
  },
  terminal: async () => {
    const { TerminalPane } = await import("./terminal.js");
    const pane = new TerminalPane(sandbox);
    return { shown: (focus) => focus && pane.focus() };
  },
  state: () => ({ shown: () => document.getElementById("how").dispatchEvent(new Event("shown")) }),
};

const nameOf = (tab) => tab.id.slice("tab-".length);

async function choose(name, { focus = true } = {}) {
  for (const tab of tabs) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  history.replaceState(null, "", `#${name}`);
  begun[name] ??= start[name]();
  const panel = await begun[name];
  panel.shown(focus);
}

for (const tab of tabs) {
  tab.onclick = () => choose(nameOf(tab));
  tab.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    next.focus();
    choose(nameOf(next), { focus: false });
  };
}

function named() {
  return start[location.hash.slice(1)] ? location.hash.slice(1) : "code";
}

addEventListener("hashchange", () => choose(named()));
choose(named(), { focus: false });
