// The source of the data: a daemon, or a recorded run in the element `run` of this file. The pages use both in the same way.

import { announce } from "./dom.js";
import { plural, seconds, sentence } from "./format.js";

const SILENT = 40_000; // the daemon sends at least a comment every 15 s
const PATIENCE = 30_000;
const RETRIES = [1000, 2000, 5000, 10_000, 20_000, 30_000];

const run = document.getElementById("run");
/** The recorded run, or null if there is a daemon. */
export const recording = run ? JSON.parse(run.textContent) : null;

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem("token") ?? "",
  set: (text) => (text ? sessionStorage.setItem("token", text) : sessionStorage.removeItem("token")),
};

/** The state of the page: rows by name, our identity and rights at the daemon, and the age of the data. */
export const state = {
  rows: new Map(),
  notes: [], // problems of the daemon itself
  hello: null,
  link: "connecting", // connecting, live, stale, refused, file
  problem: null,
  heardAt: 0,
  retryAt: 0,
  skew: 0, // milliseconds by which the daemon's clock is ahead of ours
};

const listeners = new Set();

/** Call a listener with the names of changed rows (null: any row may have changed). Call the result to unsubscribe. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function notify(names) {
  for (const listener of listeners) listener(names);
}

/** The daemon's time, in seconds; for a recorded run, the time of its last decision. */
export function now() {
  return recording ? Math.max(...recording.clusters.map((row) => (row.at ? seconds(row.at) : 0))) : (Date.now() + state.skew) / 1000;
}

/** Send a request to the daemon. Throws RequestError with the daemon's error message. */
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ?? AbortSignal.timeout(body === undefined ? PATIENCE : 3 * PATIENCE),
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError(0, error.name === "TimeoutError" ? "the daemon has not answered in time" : "the daemon cannot be reached");
  }
  const date = Date.parse(response.headers.get("Date"));
  if (Number.isFinite(date) && Math.abs(date - Date.now() - state.skew) > 2000) state.skew = date - Date.now();
  if (response.ok) return response.headers.get("Content-Type")?.startsWith("text/event-stream") ? response : response.json();
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error ?? message;
  } catch {
    // the body is not our JSON, for example an error page of a proxy
  }
  throw new RequestError(response.status, message);
}

const path = (name, rest = "") => `api/v1/clusters/${encodeURIComponent(name)}${rest}`;
const iso = (at) => new Date(at * 1000).toISOString();
const between = (from, until) => `from=${encodeURIComponent(iso(from))}&until=${encodeURIComponent(iso(until))}`;

export function fetchCluster(name) {
  if (!recording) return request(path(name));
  const row = state.rows.get(name);
  if (!row) throw new RequestError(404, `there is no cluster ${name} in this file`);
  const last = (recording.decisions?.[name] ?? []).reduce((a, b) => (a && a.decision.at > b.decision.at ? a : b), null);
  return { learned: null, ...row, ...last };
}

/** The series between two times in seconds; `from` null: the whole series of a recorded run. */
export async function fetchSeries(name, from, until, points = 600) {
  if (!recording) return request(path(name, `/series?${between(from, until)}&points=${points}`));
  const whole = recording.series?.[name];
  if (!whole) throw new RequestError(404, `this file has no series of ${name}`);
  return from === null ? whole : slice(whole, from, until);
}

function slice(whole, from, until) {
  const kept = whole.at.map((at) => at >= from && at <= until);
  const inside = (each) => seconds(each.at) >= from && seconds(each.at) <= until;
  const cut = Object.entries(whole).map(([key, value]) => {
    if (key === "decisions" || key === "rescales") return [key, value.filter(inside)];
    return [key, Array.isArray(value) ? value.filter((_, index) => kept[index]) : value];
  });
  return { ...Object.fromEntries(cut), from: iso(from), until: iso(until) };
}

/** The decision at a time (an ISO text) with its whole trail, or null. */
export async function fetchDecision(name, at) {
  if (!recording) return (await request(path(name, `/decisions?limit=1&until=${encodeURIComponent(at)}`))).decisions[0] ?? null;
  return (recording.decisions?.[name] ?? []).find((each) => seconds(each.decision.at) === seconds(at)) ?? null;
}

export const decideNow = (name, reason) => request(path(name, "/decide"), { body: reason ? { reason } : {} });
export const simulateWith = (name, change, from, until) => request(path(name, "/what-if"), { body: { ...change, from: iso(from), until: iso(until) } });
export const sendControl = (control) => request("api/v1/controls", { body: control });
export const fetchControls = () => request("api/v1/controls");
export const fetchAudit = () => request("api/v1/audit?limit=100");

/** Why the user cannot change anything, or null. */
export function whyReadOnly() {
  if (recording) return "This is a recorded run: nothing can be changed here.";
  const { hello } = state;
  if (hello?.writable) return null;
  if (hello?.tokens === false) return "No token of the daemon may write: add one with rights: write to daemon.tokens and send SIGHUP.";
  if (!token.get()) return "Reading needs no token, changing does: enter one with rights: write.";
  if (hello?.problem) return `${sentence(hello.problem)}: enter another one with rights: write.`;
  if (hello?.by) return `The token of ${hello.by} may only read: enter one with rights: write.`;
  return "Enter a token with rights: write.";
}

let following = null;
let checking = 0;

/** Follow the daemon while the page is open. Another call restarts it, e.g. with a new token. Resolves at the first answer. */
export async function follow() {
  if (recording) {
    for (const row of recording.clusters) state.rows.set(row.name, row);
    state.link = "file";
    return notify(null);
  }
  following?.abort();
  clearInterval(checking);
  checking = setInterval(() => state.link === "live" && document.visibilityState === "visible" && checkDaemon(), CHECKED_EVERY);
  following = new AbortController();
  await new Promise((resolve) => keepFollowing(following.signal, resolve));
}

async function keepFollowing(stop, onAnswer) {
  for (let attempt = 0; !stop.aborted; attempt++) {
    const silence = new AbortController();
    const giveUp = () => silence.abort();
    stop.addEventListener("abort", giveUp);
    try {
      await listen(silence, () => {
        attempt = 0;
        onAnswer();
      });
      state.problem = "the daemon has ended the connection";
    } catch (error) {
      state.problem = error instanceof RequestError ? error.message : "no message from the daemon for some time";
      if (!stop.aborted && [401, 403].includes(error.status)) {
        // Do not retry: that would only fill the daemon's audit. Entering another token starts again.
        state.link = "refused";
        notify(null);
        return onAnswer();
      }
    }
    stop.removeEventListener("abort", giveUp);
    onAnswer();
    if (stop.aborted) return;
    state.link = state.heardAt ? "stale" : "connecting";
    const pause = RETRIES[Math.min(attempt, RETRIES.length - 1)] * (0.8 + 0.4 * Math.random());
    state.retryAt = Date.now() + pause;
    notify(null);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function listen(silence, onHello) {
  let quiet = setTimeout(() => silence.abort(), SILENT);
  try {
    const response = await request("api/v1/events", { signal: silence.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(quiet);
      quiet = setTimeout(() => silence.abort(), SILENT);
      state.heardAt = Date.now();
      const messages = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = messages.pop();
      for (const { event, data } of messages.map(parsed)) {
        if (event === "hello") {
          await greet(data);
          onHello();
        } else if (event === "rows") take(data.clusters, data.gone);
      }
    }
  } finally {
    clearTimeout(quiet);
    silence.abort();
  }
}

const CHECKED_EVERY = 30_000;

// Reads the problems of the daemon itself, not of single clusters: its configuration, its stores, its fleets.
async function checkDaemon() {
  try {
    const response = await fetch("readyz", { headers: token.get() ? { Authorization: `Bearer ${token.get()}` } : {}, cache: "no-store" });
    const { reload, store, history, fleets = {} } = await response.json();
    state.notes = [
      ...[reload].flat().filter((text) => text && text !== "ok").map((text) => `The new configuration is not used: ${text}`),
      ...(store && store !== "ok" ? [`State cannot be stored: ${store}`] : []),
      ...(history && history !== "ok" ? [`The history cannot be written: ${history}`] : []),
      ...Object.entries(fleets).map(([name, why]) => `Fleet ${name}: ${why}`),
    ];
    notify(null);
  } catch {
    // the state of the connection shows this failure
  }
}

function parsed(message) {
  let event = "message";
  const data = [];
  for (const line of message.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5));
  }
  return { event, data: data.length ? JSON.parse(data.join("\n")) : null };
}

// Read all rows only after the greeting, so that no change is lost: it is in the rows, in the events, or in both.
async function greet(hello) {
  const all = await request("api/v1/clusters");
  state.hello = hello;
  state.link = "live";
  state.problem = null;
  const known = new Set(all.clusters.map((row) => row.name));
  take(all.clusters, [...state.rows.keys()].filter((name) => !known.has(name)), true);
  checkDaemon();
}

function take(rows, gone = [], all = false) {
  const worse = [];
  const better = [];
  for (const row of rows) {
    const before = state.rows.get(row.name);
    if (before && before.severity !== row.severity) {
      if (row.severity === 2) worse.push(row.name);
      else if (before.severity === 2) better.push(row.name);
    }
    state.rows.set(row.name, row);
  }
  for (const name of gone) state.rows.delete(name);
  notify(all ? null : new Set([...rows.map((row) => row.name), ...gone]));
  const said = [worse.length && `In trouble: ${few(worse)}.`, better.length && `No longer in trouble: ${few(better)}.`].filter(Boolean);
  if (said.length) announce(said.join(" "));
}

function few(names) {
  return names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${plural(names.length - 3, "more cluster")}` : "");
}
