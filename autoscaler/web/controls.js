// Pauses, holds and limits: the dialogs for them, the token that they take, and the page of what is in force and who did what.

import { announce, el, field, table } from "./dom.js";
import { sentence, time } from "./format.js";
import { fetchAudit, fetchControls, follow, recording, sendControl, state, token, whyReadOnly } from "./source.js";

const ACTIONS = {
  pause: ["Pause", "Decisions go on and are shown, but the size is left as it is."],
  hold: ["Hold", "The size is set to a number and kept there."],
  limit: ["Limit", "The size stays within these bounds."],
  resume: ["Resume", "Every pause, hold and limit of it ends now."],
};
const TIMES = { "15m": "15 minutes", "1h": "1 hour", "4h": "4 hours", "24h": "1 day", "7d": "7 days", "": "until it is resumed" };

/**
 * A modal dialog. `submit` may throw: its message is shown and the dialog stays. Focus goes to what it gives, or back to
 * where it was.
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

/** Ask for a control and send it. The scope is one cluster, or is asked for too. */
export function openControl(action, cluster) {
  const row = state.rows.get(cluster);
  const [verb, meaning] = ACTIONS[action];
  const fields = [];
  if (!cluster) {
    fields.push(field("Clusters", el("input", { name: "clusters", autocomplete: "off", placeholder: "prod-*" }), "Names or patterns such as prod-*, with commas between them"));
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
  fields.push(field("Reason", el("input", { name: "reason", maxlength: 500, autocomplete: "off" }), "It is shown wherever the control is, and stays in the audit"));
  openDialog(cluster ? `${verb} ${cluster}` : `${verb} clusters`, meaning, fields, verb, async (form) => {
    const answer = await sendControl(controlOf(action, cluster, form));
    const until = answer.until ? ` until ${time(answer.until)}` : "";
    const sizes = [...new Set(Object.values(answer.held_at))];
    const bounded = sizes.length ? ` Min and max of the configuration hold ${cluster ? "it" : "some"} at ${sizes.join(" or ")} instead.` : "";
    const before = [...new Set(Object.values(answer.preceded_by ?? {}).flat())];
    const preceded = before.length ? ` What is in force already counts before it: ${before.join("; ")}.` : "";
    announce(`${verb}: done for ${answer.clusters.length === 1 ? answer.clusters[0] : `${answer.clusters.length} clusters`}${until}.${bounded}${preceded}`);
    document.dispatchEvent(new Event("controlled"));
  });
}

function controlOf(action, cluster, form) {
  const text = (name) => (form.get(name) ?? "").trim();
  const list = (name) => text(name).split(",").map((part) => part.trim()).filter(Boolean);
  // Patterns are for people: of one cluster its name is meant as it is, whatever characters it has.
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

/** Ask for a token, and connect again with it. */
export function openToken() {
  const input = el("input", { name: "token", type: "password", autocomplete: "off", spellcheck: "false" });
  const forget = el("button", { type: "button", class: "quiet", onclick: () => ((input.value = ""), input.form.requestSubmit()) }, "Forget it");
  const fields = [field("Token", input, "One of daemon.tokens. It is kept in this tab until that is closed, and sent to this daemon only."), token.get() && forget];
  openDialog("Access", whyReadOnly() ?? `You can pause, hold and limit clusters${state.hello?.by ? `, as ${state.hello.by}` : ""}.`, fields, "Use it", async (form) => {
    const text = form.get("token").trim();
    if (/[^\x21-\x7e]/.test(text)) throw new Error("A token has no spaces and no characters beyond ASCII.");
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

/** A button for a control. Without the right it stays reachable and says why not. */
export function controlButton(action, cluster, label = ACTIONS[action][0]) {
  return guarded(label, () => openControl(action, cluster));
}

/** A button for what needs a token with rights: write. */
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

/** Adjust all such buttons to what we may do now. */
export function markAllGuarded() {
  document.querySelectorAll("[data-guarded]").forEach(markGuarded);
}

/** The page of the controls. Gives a function that ends it. */
export function showControls(main) {
  const inForce = el("div", {});
  const audit = el("div", {});
  const buttons = ["pause", "hold", "limit", "resume"].map((action) => controlButton(action, null, `${ACTIONS[action][0]}…`));
  main.append(
    el("h1", {}, "Controls"),
    el("p", { class: "calm" }, "The pauses, holds and limits that are in force now, and who changed what."),
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
      if (!controls.length) return el("p", { class: "calm" }, "Nothing: every cluster is scaled as its policies and guards decide.");
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

/** Put what a function makes into a place, or why it could not. */
async function show(place, make) {
  try {
    place.replaceChildren(await make());
  } catch (error) {
    if (error.name === "AbortError") return;
    place.replaceChildren(el("p", { class: "problem" }, error.message));
  }
}
