// Requests of the REST API, with the session that the page has.
import { notice } from "./app.js";

export const API = "/api/v1";
export const prefix = document.body.dataset.prefix;

export class Refusal extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.message);
    this.problem = { ...problem, message: problem.message ?? problem.detail };
  }
}

/** Returns the problem that an answer tells; one of its own where it tells none. */
export async function problemOf(answer) {
  try {
    return await answer.json();
  } catch {
    return { error: "backend_error", message: `The server answered with ${answer.status}.`, next: "Try again." };
  }
}

export function signInAgain() {
  location.assign(`${prefix}/sign-in?ended=1&next=${encodeURIComponent(location.pathname)}`);
}

export async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(API + path, options);
  } catch {
    throw new Refusal({ error: "backend_unavailable", message: "The server can't be reached.", next: "Try again in a moment." });
  }
  if (answer.status === 401) signInAgain();
  if (!answer.ok) throw new Refusal(await problemOf(answer));
  return answer;
}

export async function get(path) {
  return (await request(path)).json();
}

export async function send(method, path, body, headers = {}) {
  const json = body === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await request(path, { method, headers: { ...json, ...headers }, body: body && JSON.stringify(body) });
  return answer.json();
}

/** Runs what a user asked for, and shows why it was refused. */
export async function tried(work) {
  try {
    return await work();
  } catch (error) {
    notice(error instanceof Refusal ? error.problem : { message: String(error.message ?? error) });
    if (!(error instanceof Refusal)) console.error(error);
    return undefined;
  }
}

/** Has the page ask anew how the sandbox is. */
export function told() {
  document.body.dispatchEvent(new Event("changed"));
}

export const encoded = (path) => path.split("/").map(encodeURIComponent).join("/");

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
