// The page: which view is on screen, the stream behind it, what stands around it.

import { Feed, forgetToken, onTokenNeeded } from "./api.js";
import { empty, shortcuts, token } from "./dialogs.js";
import { h, icon, setText } from "./dom.js";
import { ago, clock, count } from "./format.js";
import { listen } from "./keys.js";
import { overview } from "./overview.js";
import { play } from "./play.js";
import { session } from "./session.js";
import { sessions } from "./sessions.js";
import { start } from "./start.js";
import { workers } from "./workers.js";

const ROUTES = [
  [/^\/$/, "overview", overview],
  [/^\/workers$/, "workers", workers],
  [/^\/sessions$/, "sessions", sessions],
  [/^\/sessions\/(\d+)$/, "sessions", session],
  [/^\/play$/, "play", start],
  [/^\/play\/(\d+)$/, "play", play],
];

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const status = document.getElementById("status");
const feed = new Feed({ onStatus });
let view = null;
let lastSessions = "#/sessions";

/** What a view may ask of the page. */
class Page {
  constructor(name, params) {
    this.name = name;
    this.params = params;
  }

  go(hash) {
    location.hash = hash === "#/sessions" ? lastSessions : hash;
  }

  /** Change parameters of the address without leaving the view; an empty one goes. */
  change(changed) {
    for (const [name, value] of Object.entries(changed)) {
      if (value === "") this.params.delete(name);
      else this.params.set(name, value);
    }
    const [path] = location.hash.slice(1).split("?");
    history.replaceState(null, "", `#${path}${this.params.size ? `?${this.params}` : ""}`);
    remember();
    view.reset?.();
    follow(view.queryOf(this.params));
  }
}

function remember() {
  if (/^#\/sessions(\?|$)/.test(location.hash)) lastSessions = location.hash;
}

function show({ isFirst = false } = {}) {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const [pattern, nav, create] = ROUTES.find(([candidate]) => candidate.test(path)) ?? [/^/, "", missing];
  remember();
  view?.close?.();
  view = create(new Page(path.match(pattern)[1], new URLSearchParams(query)));
  document.title = `${view.title} · AgentRL`;
  const heading = h("div", { class: "heading" }, view.heading ?? h("h1", { tabindex: "-1" }, view.title));
  const body = h("div", { class: "view" }, view.element);
  body.hidden = Boolean(view.query);
  main.replaceChildren(heading, loading(), body);
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === nav) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const link of heading.querySelectorAll('a.back[href="#/sessions"]')) link.href = lastSessions;
  scrollTo(0, 0);
  if (!isFirst) heading.querySelector("h1").focus({ preventScroll: true });
  follow(view.query);
}

const loading = () => h("p", { class: "loading", role: "status" }, "Loading…");

function missing() {
  return {
    title: "Nothing here",
    element: empty("There is no such page", h("a", { class: "button", href: "#/" }, "To the overview")),
    keys: {},
  };
}

function follow(query) {
  const current = view;
  if (!query) {
    main.querySelector(".loading")?.remove();
    return;
  }
  feed.open(query, {
    onState(state) {
      if (view !== current) return;
      settle(null);
      current.render(state);
      setText(document.getElementById("count-workers"), count(state.workers_alive));
      setText(document.getElementById("count-sessions"), count(state.live));
      age();
    },
    onRefused(error) {
      if (view === current) settle(refusal(error, query));
    },
  });
}

/** Show the view, or what stands in for it. */
function settle(instead) {
  main.querySelectorAll(":scope > .loading, :scope > .empty").forEach((node) => node.remove());
  main.querySelector(":scope > .view").hidden = instead !== null;
  if (instead) main.append(instead);
}

function refusal(error, query) {
  const again = h(
    "button",
    { type: "button", class: "primary", onclick: () => follow(query) },
    error.status === 401 ? "Enter the token" : "Try again",
  );
  if (error.status === 401)
    return empty("Locked", h("p", {}, "This controller shows itself to those who know its token."), again);
  if (error.status === 403)
    return empty(
      "This token does not open it",
      h("p", {}, error.message),
      h(
        "button",
        {
          type: "button",
          class: "primary",
          onclick: () => {
            forgetToken();
            follow(query);
          },
        },
        "Enter another token",
      ),
    );
  if (error.code === "unknown_session")
    return empty(
      "This session is not known",
      h("p", {}, "It never was, or it ended too long ago to be kept."),
      h("a", { class: "button", href: lastSessions }, "To the sessions"),
    );
  return empty("The controller refused this", h("p", {}, error.message), again);
}

function onStatus({ status: state, since, retryMs }) {
  status.dataset.status = state;
  setText(status.lastElementChild, { live: "Live", lost: "Disconnected", locked: "Locked" }[state]);
  document.body.classList.toggle("stale", state === "lost");
  banner.hidden = state !== "lost";
  if (state !== "lost") return;
  const seen = since === null ? "It has not answered yet." : `What you see is from ${clock(since)}.`;
  const now = h("button", { type: "button", onclick: () => feed.retry?.() }, "Try now");
  banner.replaceChildren(
    h(
      "span",
      {},
      h("strong", {}, "No connection to the controller. "),
      `${seen} Trying again in ${Math.round(retryMs / 1000)} s.`,
    ),
    now,
  );
}

/** Let the times on screen age. */
function age() {
  const now = feed.now();
  for (const node of document.querySelectorAll("time[data-ago]"))
    if (node.dataset.ago) setText(node, ago(now - Number(node.dataset.ago)));
}

const THEMES = {
  system: ["light", "System theme"],
  light: ["dark", "Light theme"],
  dark: ["system", "Dark theme"],
};
const ICONS = { system: "system", light: "sun", dark: "moon" };

function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

function showTheme() {
  const button = document.getElementById("theme");
  const [, label] = THEMES[theme()];
  button.replaceChildren(icon(ICONS[theme()]));
  button.setAttribute("aria-label", `${label}: change`);
  button.title = `${label} (t)`;
}

function changeTheme() {
  const [next] = THEMES[theme()];
  if (next === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("agentrl-theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("agentrl-theme", next);
  }
  showTheme();
}

const goes = (hash) => () => {
  location.hash = hash;
};

listen(
  {
    "g o": goes("#/"),
    "g w": goes("#/workers"),
    "g s": goes("#/sessions"),
    "g p": goes("#/play"),
    "/": () => {
      const search = document.querySelector("[data-search]");
      if (search) search.select();
      else return false;
    },
    "?": shortcuts,
    t: changeTheme,
  },
  () => view?.keys ?? {},
);

onTokenNeeded(token);
addEventListener("hashchange", () => {
  if (/^#(\/|$)/.test(location.hash) || location.hash === "") show();
});
document.getElementById("skip").addEventListener("click", () => main.focus());
document.getElementById("theme").addEventListener("click", changeTheme);
document.getElementById("help").addEventListener("click", shortcuts);
setInterval(age, 1_000);
showTheme();
show({ isFirst: true });
