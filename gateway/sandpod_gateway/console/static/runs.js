// Starts programs, follows them, and keeps what was run in this tab.
import { plain } from "./ansi.js";
import { API, element, get, problemOf, Refusal, send, signInAgain, told, tried } from "./api.js";
import { Output } from "./output.js";
import { show } from "./shown.js";

const MAX_KEPT = 50; // programs, and 20,000 characters of each
const $ = (id) => document.getElementById(id);

export class Runs {
  constructor(sandbox, { editor, timeout }) {
    Object.assign(this, { sandbox, editor, timeout, output: new Output($("output")), current: null, events: null });
    this.address = `/sandboxes/${encodeURIComponent(sandbox)}`;
    this.programs = JSON.parse(sessionStorage.getItem(`runs:${sandbox}`) ?? "{}");
    $("run").onclick = () => this.start();
    $("stop").onclick = () => tried(() => this.stop());
    $("language").onchange = () => editor.use($("language").value);
  }

  async start() {
    if ($("run").disabled) return;
    const body = { code: this.editor.text, language: $("language").value, sandbox: this.sandbox };
    if ($("context").value.trim()) body.context = $("context").value.trim();
    if (body.language === "shell") delete body.context;
    await tried(async () => {
      this.begin("Starting…");
      try {
        const started = await send("POST", "/runs", body, { Prefer: "respond-async" });
        this.keep(started.run_id, body);
        this.follow(started.run_id);
      } catch (error) {
        this.done("Not started");
        told(); // the sandbox may have ended
        throw error;
      }
      await this.list();
    });
  }

  begin(state) {
    this.events?.close();
    this.output.clear();
    $("shown").replaceChildren();
    $("run").disabled = true;
    $("state").textContent = state;
  }

  /** Shows a run from its beginning; a connection that breaks goes on where it was. */
  follow(run) {
    this.current = run;
    $("stop").disabled = false;
    $("state").textContent = "Running…";
    const events = (this.events = new EventSource(`${API}/runs/${encodeURIComponent(run)}/events`));
    events.addEventListener("output", (event) => {
      const came = JSON.parse(event.data);
      if (came.dropped_bytes) this.output.say(`${came.dropped_bytes.toLocaleString()} bytes are no longer kept.`);
      this.output.write("out", came.stdout);
      this.output.write("err", came.stderr);
    });
    events.addEventListener("result", (event) => this.end(JSON.parse(event.data)));
    events.addEventListener("error", async (event) => {
      if (event.data) { // the server's last word
        const problem = JSON.parse(event.data);
        this.output.say(`${problem.message} ${problem.next ?? ""}`, "err");
        this.done(problem.error);
      } else if (events.readyState === EventSource.CLOSED) await this.why(run);
      else $("state").textContent = "Connecting again…";
    });
    events.addEventListener("open", () => ($("state").textContent = "Running…"));
  }

  async why(run) {
    const answer = await fetch(`${API}/runs/${encodeURIComponent(run)}`).catch(() => null);
    if (answer?.status === 401) return signInAgain();
    if (answer && !answer.ok) {
      const problem = new Refusal(await problemOf(answer)).problem;
      this.output.say(`${problem.message} ${problem.next ?? ""}`, "err");
    }
    this.done(answer?.ok ? "Not followed any more" : "Not known any more");
  }

  end(result) {
    const code = result.exit_code == null ? result.signal ?? "" : `exit code ${result.exit_code}`;
    const parts = [result.outcome, code, `${(result.duration_ms / 1000).toFixed(2)} s`];
    const written = result.stdout_bytes + result.stderr_bytes;
    if (!written && !result.result && !result.displays?.length && !result.pictures) this.output.say("No output.");
    if (result.hint) this.output.say(result.hint);
    this.output.draw();
    show($("shown"), result, result.sandbox);
    this.done(parts.filter(Boolean).join(" · "));
    told(); // the sandbox may be new, and has been used
    tried(() => this.refresh());
  }

  done(state) {
    this.events?.close();
    this.events = null;
    $("run").disabled = false;
    $("stop").disabled = true;
    $("state").textContent = state;
  }

  async stop() {
    if (!this.current) return;
    $("stop").disabled = true;
    $("state").textContent = "Stopping…";
    await send("DELETE", `/runs/${encodeURIComponent(this.current)}`);
  }

  keep(run, body) {
    const kept = Object.entries({ ...this.programs, [run]: { ...body, code: body.code.slice(0, 20_000) } });
    this.programs = Object.fromEntries(kept.slice(-MAX_KEPT));
    try {
      sessionStorage.setItem(`runs:${this.sandbox}`, JSON.stringify(this.programs));
    } catch { /* no room: they last as long as the page */ }
  }

  async refresh() {
    await this.list();
    await this.contexts();
  }

  async list() {
    const { runs } = await get(`${this.address}/runs?limit=1000`);
    const shown = runs.filter((run) => !run.run_id.includes("term-")).reverse().slice(0, 100);
    $("history").replaceChildren(...shown.map((run) => element("li", {}, this.entry(run))));
    if (!shown.length) $("history").append(element("li", { className: "muted small", textContent: "None yet." }));
  }

  entry(run) {
    const program = this.programs[run.run_id];
    const first = program?.code.trim().split("\n")[0].slice(0, 80) || run.run_id.split(".").pop();
    const button = element("button", { title: program ? "Show it, and put its program into the editor" : "Show its output" });
    if (run.run_id === this.current) button.setAttribute("aria-current", "true");
    const outcome = run.state === "running" ? "running" : run.outcome ?? "ended";
    const failed = outcome !== "ok" && outcome !== "running";
    button.append(
      element("span", { className: "first", textContent: plain(first) }),
      element("span", { className: "line-2" },
        element("span", { textContent: outcome, className: failed ? "bad" : "" }),
        element("span", { textContent: run.language }),
        element("span", { textContent: new Date(run.started_at).toLocaleTimeString() })),
    );
    button.onclick = () => {
      if (program) {
        this.editor.text = program.code;
        $("language").value = program.language;
        $("context").value = program.context ?? "";
        this.editor.use(program.language);
      }
      this.begin("Loading…");
      this.follow(run.run_id);
      for (const each of $("history").querySelectorAll("button")) each.setAttribute("aria-current", String(each === button));
    };
    return button;
  }

  async contexts() {
    const { contexts } = await get(`${this.address}/contexts`);
    $("contexts").replaceChildren(...contexts.map((each) => element("option", { value: each.name, label: `${each.language}, ${each.state}` })));
  }
}
