// Pauses, holds and limits: their dialogs, the dialog for the token, and the page with the controls in force and the audit.

import { announce, el, field, table } from "./dom.js";
import { sentence, time } from "./format.js";
import { fetchAudit, fetchControls, follow, recording, sendControl, state, token, whyReadOnly } from "./source.js";

const ACTIONS = {
  pause: ["Pause", "The daemon continues to decide and to show its decisions, but does not change the size."],
  hold: ["Hold", "The size is set to a number and kept there."],
  limit: ["Limit", "The size stays within these bounds."],
  resume: ["Resume", "All pauses, holds and limits that are set here end now."],
};
const TIMES = { "15m": "15 minutes", "1h": "1 hour", "4h": "4 hours", "24h": "1 day", "7d": "7 days", "": "until resumed" };

/**
 * Open a modal dialog. If `submit` throws, its message is shown and the dialog stays open. Afterwards the element that
 * `submit` returns gets the focus, or else the element that had it before.
 */
export function openDialog(title, explanation, fields, label, submit) {
  let next = document.activeElement;
  const problem = el("p", { class: "problem", role: "alert" });
  const button = el("button", { class: "primary" }, label);
  const dialog = el(
    "dialog",
    { "aria-labelledby": "dialog-title", onclose: () => (dialog.remove(), next?.focus()) },
    el(
      "form",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          button.disabled = true;
          problem.textContent = "";
          try {
            next = (await submit(new FormData(event.target))) ?? next;
            dialog.close();
          } catch (error) {
            problem.textContent = error.message;
          }
          button.disabled = false;
        },
      },
      el("h2", { id: "dialog-title" }, title),
      explanation && el("p", { class: "calm" }, explanation),
      ...fields,
      problem,
      el("div", { class: "actions" }, el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"), button),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}

const number = (name, value) => el("input", { name, type: "number", min: 0, max: 1_000_000, step: 1, value });

/** Open the dialog for a control, and send the control. Without `cluster`, the dialog also asks for the scope. */
export function openControl(action, cluster) {
  const row = state.rows.get(cluster);
  const [verb, meaning] = ACTIONS[action];
  const fields = [];
  if (!cluster) {
    fields.push(field("Clusters", el("input", { name: "clusters", autocomplete: "off", placeholder: "prod-*" }), "Names or patterns such as prod-*, separated by commas"));
    fields.push(field("Fleets", el("input", { name: "fleets", autocomplete: "off" }), "All clusters of these fleets"));
  }
  if (action === "pause") {
    const ways = [["both", "up and down"], ["up", "up only"], ["down", "down only"]];
    fields.push(field("Scaling", el("select", { name: "ways" }, ways.map(([value, text]) => el("option", { value }, text)))));
  }
  if (action === "hold") fields.push(field("Workers", number("replicas", row?.desired ?? row?.current)));
  if (action === "limit") fields.push(el("div", { class: "pair" }, field("At least", number("min", row?.min)), field("At most", number("max", row?.max))));
  if (action !== "resume") {
    const options = Object.entries(TIMES).map(([value, text]) => el("option", { value, selected: value === "1h" }, text));
    fields.push(field("For", el("select", { name: "for" }, options)));
  }
  fields.push(field("Reason", el("input", { name: "reason", maxlength: 500, autocomplete: "off" }), "It is shown with the control, and kept in the audit"));
  openDialog(cluster ? `${verb} ${cluster}` : `${verb} clusters`, meaning, fields, verb, async (form) => {
    const answer = await sendControl(controlOf(action, cluster, form));
    const until = answer.until ? ` until ${time(answer.until)}` : "";
    const sizes = [...new Set(Object.values(answer.held_at))];
    const bounded = sizes.length ? ` Min and max of the configuration hold ${cluster ? "it" : "some"} at ${sizes.join(" or ")} instead.` : "";
    const before = [...new Set(Object.values(answer.preceded_by ?? {}).flat())];
    const preceded = before.length ? ` Controls already in force take precedence: ${before.join("; ")}.` : "";
    announce(`${verb}: done for ${answer.clusters.length === 1 ? answer.clusters[0] : `${answer.clusters.length} clusters`}${until}.${bounded}${preceded}`);
    document.dispatchEvent(new Event("controlled"));
  });
}

function controlOf(action, cluster, form) {
  const text = (name) => (form.get(name) ?? "").trim();
  const list = (name) => text(name).split(",").map((part) => part.trim()).filter(Boolean);
  // Only names that people type are patterns: the name of a given cluster is escaped, so that it matches literally.
  const control = { action, clusters: cluster ? [literal(cluster)] : list("clusters") };
  if (!cluster) control.fleets = list("fleets");
  if (action === "pause" && text("ways") !== "both") control[text("ways")] = true;
  for (const name of ["replicas", "min", "max"]) {
    if (form.has(name) && text(name) !== "") control[name] = Number(text(name));
  }
  if (form.get("for")) control.for = text("for");
  else if (form.has("for")) control.until_resumed = true;
  if (text("reason")) control.reason = text("reason");
  return control;
}

function literal(name) {
  return name.replace(/[*?[]/g, "[$&]");
}

/** Open the dialog for a token, and reconnect with it. */
export function openToken() {
  const input = el("input", { name: "token", type: "password", autocomplete: "off", spellcheck: "false" });
  const forget = el("button", { type: "button", class: "quiet", onclick: () => ((input.value = ""), input.form.requestSubmit()) }, "Forget it");
  const fields = [field("Token", input, "One of daemon.tokens. This tab keeps it until you close the tab, and sends it only to this daemon."), token.get() && forget];
  openDialog("Access", whyReadOnly() ?? `You can pause, hold and limit clusters${state.hello?.by ? `, as ${state.hello.by}` : ""}.`, fields, "Use it", async (form) => {
    const text = form.get("token").trim();
    if (/[^\x21-\x7e]/.test(text)) throw new Error("A token must not contain spaces or non-ASCII characters.");
    const before = token.get();
    token.set(text);
    await follow();
    const problem = state.link === "refused" || state.link === "stale" ? state.problem : text && state.hello?.problem ? `${sentence(state.hello.problem)}.` : null;
    if (!problem) return;
    token.set(before);
    follow();
    throw new Error(problem);
  });
}

/** A button for a control. If the user may not use it, it stays reachable and says why. */
export function controlButton(action, cluster, label = ACTIONS[action][0]) {
  return guarded(label, () => openControl(action, cluster));
}

/** A button for an action that needs a token with rights: write. */
export function guarded(label, act) {
  const button = el("button", { type: "button", "data-guarded": true, onclick: () => (button.getAttribute("aria-disabled") ? explainRefusal() : act()) }, label);
  markGuarded(button);
  return button;
}

function explainRefusal() {
  if (recording) announce(whyReadOnly());
  else openToken();
}

function markGuarded(button) {
  const why = whyReadOnly();
  button.title = why ?? "";
  if (why) button.setAttribute("aria-disabled", "true");
  else button.removeAttribute("aria-disabled");
}

/** Update all guarded buttons to the present rights. */
export function markAllGuarded() {
  document.querySelectorAll("[data-guarded]").forEach(markGuarded);
}

/** Show the page of the controls. Returns a function that ends it. */
export function showControls(main) {
  const inForce = el("div", {});
  const audit = el("div", {});
  const buttons = ["pause", "hold", "limit", "resume"].map((action) => controlButton(action, null, `${ACTIONS[action][0]}…`));
  main.append(
    el("h1", {}, "Controls"),
    el("p", { class: "calm" }, "The pauses, holds and limits in force now, and who changed what."),
    el("div", { class: "actions start" }, ...buttons),
    el("h2", {}, "In force"),
    inForce,
    el("h2", {}, "Who did what"),
    audit,
  );
  if (recording) inForce.append(el("p", { class: "calm" }, whyReadOnly()));
  else load();
  document.addEventListener("controlled", load);
  return () => document.removeEventListener("controlled", load);

  async function load() {
    await show(inForce, async () => {
      const { controls } = await fetchControls();
      if (!controls.length) return el("p", { class: "calm" }, "No controls: the policies and guards decide the size of every cluster.");
      const rows = controls.map((each) => [each.text, scopeOf(each), affected(each.in_force), time(each.until)]);
      return table("Controls in force", ["Control", "For", "In force for", "Until (UTC)"], rows);
    });
    await show(audit, async () => {
      const { entries } = await fetchAudit();
      if (!entries.length) return el("p", { class: "calm" }, "Nobody has changed anything yet.");
      const rows = entries.map((each) => [time(each.at), each.by, each.accepted ? each.action : `${each.action} (refused)`, each.scope, each.detail, each.reason ?? ""]);
      return table("Audit, newest first", ["At (UTC)", "By", "What", "For", "Detail", "Reason"], rows);
    });
  }
}

function scopeOf({ clusters, fleets }) {
  return [...clusters, ...fleets.map((fleet) => `fleet ${fleet}`)].join(", ");
}

function affected(names) {
  if (!names.length) return "no cluster at present";
  return names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");
}

/** Show the element that a function makes in a place, or the error message if it fails. */
async function show(place, make) {
  try {
    place.replaceChildren(await make());
  } catch (error) {
    if (error.name === "AbortError") return;
    place.replaceChildren(el("p", { class: "problem" }, error.message));
  }
}
