// The entry point: routing between pages, the theme, and the state of the connection.

import { setText } from "./dom.js";
import { duration, sentence, time } from "./format.js";
import { follow, recording, state, subscribe, token, whyReadOnly } from "./source.js";
import { markAllGuarded, openToken, showControls } from "./controls.js";
import { showFleet } from "./fleet.js";
import { showCluster } from "./cluster.js";

const THEMES = ["system", "light", "dark"];

const content = document.getElementById("main");
let leave = null;

function route() {
  const [where, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const controls = where === "controls" || where === "orders"; // bookmarks may contain the page's former name, "orders"
  const query = new URLSearchParams(search);
  leave?.();
  content.replaceChildren();
  const cluster = where.startsWith("cluster/") ? decoded(where.slice("cluster/".length)) : null;
  if (cluster) leave = showCluster(content, query, cluster);
  else if (controls) leave = showControls(content);
  else leave = showFleet(content, query);
  document.title = `${cluster ?? (controls ? "Controls" : "Clusters")} · autoscaler`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === (controls ? "controls" : cluster ? "" : "fleet")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function showLink() {
  const words = {
    connecting: "connecting",
    live: "live",
    stale: `stale since ${time(state.heardAt / 1000)}`,
    refused: "refused",
    file: "a recorded run",
  };
  document.getElementById("link").className = `link ${state.link}`;
  setText(document.getElementById("link-text"), words[state.link]);
  document.body.classList.toggle("stale", state.link === "stale");
  const banner = document.getElementById("banner");
  banner.hidden = !state.problem;
  if (state.problem) {
    const next = state.link === "refused" ? "Enter a token at “Access”." : `Trying again in ${duration((state.retryAt - Date.now()) / 1000)}.`;
    const old = state.heardAt ? ` The data is from ${time(state.heardAt / 1000)} UTC.` : "";
    setText(banner, `${sentence(state.problem)}. ${next}${old}`);
  }
  const access = document.getElementById("access");
  access.hidden = state.link === "file";
  setText(access, state.hello?.writable ? `Can change${state.hello.by ? `: ${state.hello.by}` : ""}` : token.get() ? "Access: read only" : "Access");
  access.title = whyReadOnly() ?? "";
  markAllGuarded();
}

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  setText(document.getElementById("theme-name"), theme);
  document.dispatchEvent(new Event("theme"));
}

// A page that is opened as a file may have no storage.
function storedTheme() {
  try {
    const theme = localStorage.getItem("theme");
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    return "system";
  }
}

setTheme(storedTheme());
document.getElementById("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % THEMES.length];
  setTheme(next);
  try {
    localStorage.setItem("theme", next);
  } catch {
    // without storage the choice lasts as long as the page
  }
});
document.getElementById("access").addEventListener("click", openToken);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment of the URL selects the page, so the link must not change it
  content.focus();
});
addEventListener("hashchange", () => {
  route();
  content.focus({ preventScroll: true });
});
subscribe((changed) => changed === null && showLink());
setInterval(() => state.problem && showLink(), 1000);
// If a recorded run has one cluster, show that cluster.
if (recording?.clusters.length === 1 && !location.hash) history.replaceState(null, "", `#/cluster/${encodeURIComponent(recording.clusters[0].name)}`);
follow();
route();
showLink();
