// The editor, in the language that was picked.
import { basicSetup, EditorView } from "./vendor/codemirror.js";
import { indentWithTab } from "./vendor/codemirror-commands.js";
import { javascript } from "./vendor/codemirror-lang-javascript.js";
import { python } from "./vendor/codemirror-lang-python.js";
import { shell } from "./vendor/codemirror-legacy-modes-mode-shell.js";
import { StreamLanguage, syntaxHighlighting } from "./vendor/codemirror-language.js";
import { Compartment, Prec } from "./vendor/codemirror-state.js";
import { keymap } from "./vendor/codemirror-view.js";
import { classHighlighter } from "./vendor/lezer-highlight.js";

const languages = { python, javascript: () => javascript({ typescript: true }), shell: () => StreamLanguage.define(shell) };

export function editor(parent, { text, language, run }) {
  const chosen = new Compartment();
  const of = (name) => languages[name]?.() ?? [];
  const view = new EditorView({
    parent,
    doc: text,
    extensions: [
      Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => (run(), true) }])),
      basicSetup,
      keymap.of([indentWithTab]),
      Prec.highest(syntaxHighlighting(classHighlighter)),
      chosen.of(of(language)),
      EditorView.cspNonce.of(document.body.dataset.nonce),
      EditorView.contentAttributes.of({ "aria-label": "Program; Escape, then Tab leaves it" }),
      EditorView.lineWrapping,
    ],
  });
  return {
    get text() { return view.state.doc.toString(); },
    set text(text) { view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }); },
    use: (name) => view.dispatch({ effects: chosen.reconfigure(of(name)) }),
    focus: () => view.focus(),
  };
}
