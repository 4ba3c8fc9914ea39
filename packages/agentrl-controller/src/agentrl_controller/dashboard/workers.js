// Workers: who serves, how full they are, whether their heartbeats come; drain and clean.

import { post } from "./api.js";
import { attempt, command, confirm, empty } from "./dialogs.js";
import { h, icon, Keyed, setAttribute, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { Rows } from "./keys.js";
import { badge, bar, columns, setBadge, setBar, setTime, time } from "./widgets.js";

const SEARCH_MS = 200;

export function workers(page) {
  const search = h("input", {
    type: "search",
    placeholder: "Search task, address or id",
    "aria-label": "Search workers",
    value: page.params.get("search") ?? "",
    "data-search": true,
  });
  const found = h("p", { class: "found", role: "status" });
  const body = h("tbody");
  const table = h(
    "div",
    { class: "table panel" },
    h("table", { "aria-label": "Workers" }, columns(["Worker", "Task", "Status", "Load", "Heartbeat"]), body),
  );
  const nothing = h("div");
  const rows = new Rows(table);
  const keyed = new Keyed(body, { create, update });
  let timer;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => page.change({ search: search.value.trim() }), SEARCH_MS);
  });
  return {
    title: "Workers",
    query: { view: "workers", search: page.params.get("search") ?? "" },
    queryOf: (params) => ({ view: "workers", search: params.get("search") ?? "" }),
    element: [
      h("div", { class: "filters" }, h("div", { class: "search" }, icon("search"), search), found),
      nothing,
      table,
    ],
    keys: { ...rows.bindings, d: () => rows.focused?.closest("tr").querySelector("[data-drain]").click() },
    render(state) {
      keyed.show(state.order, state.workers);
      rows.refresh();
      const more =
        state.order.length < state.found
          ? `, the first ${count(state.order.length)} shown: search to narrow`
          : "";
      setText(found, `${plural(state.found, "worker")}${more}`);
      table.hidden = state.found === 0;
      nothing.hidden = state.found > 0;
      if (state.found === 0) nothing.replaceChildren(nobody(state, search.value));
    },
    close: () => clearTimeout(timer),
  };
}

function nobody(state, search) {
  if (state.workers_total > 0)
    return empty(
      "No worker matches",
      h(
        "p",
        {},
        `None of ${plural(state.workers_total, "worker")} has “${search}” in its task or address, or as its id.`,
      ),
    );
  return empty(
    "No task worker yet",
    h("p", {}, "Workers appear here with their first heartbeat."),
    command(`agentrl-env serve my_task.py --controller ${new URL("api", document.baseURI)}`),
  );
}

function create(worker) {
  const cells = {
    status: badge(),
    load: bar(),
    visit: time(),
    address: h("small"),
    reason: h("small", { class: "reason" }),
  };
  const drain = h("button", {
    type: "button",
    "data-drain": true,
    onclick: () => drainOrResume(row.worker_),
  });
  const clean = h(
    "button",
    { type: "button", class: "danger", onclick: () => cleanUp(row.worker_) },
    "Clean",
  );
  const sessions = `#/sessions?worker=${worker.id}&task=${encodeURIComponent(worker.task)}`;
  const row = h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      h(
        "a",
        { href: sessions, "data-row": true, tabindex: "-1", title: "Its sessions" },
        `Worker ${worker.id}`,
      ),
      cells.address,
    ),
    h("td", {}, worker.task),
    h("td", {}, cells.status, cells.reason),
    h("td", {}, cells.load),
    h("td", {}, cells.visit),
    h("td", { class: "actions" }, drain, clean),
  );
  row.cells_ = { ...cells, drain, clean };
  return row;
}

function update(row, worker) {
  const { status, load, visit, address, reason, drain, clean } = row.cells_;
  row.worker_ = worker;
  const name = `worker ${worker.id} of ${worker.task}`;
  setStatus(status, worker);
  setText(reason, worker.reason);
  setText(address, worker.address);
  setBar(load, worker.used, worker.capacity, `slots of ${name}`);
  setTime(visit, worker.last_visit);
  setText(drain, worker.draining ? "Resume" : "Drain");
  setAttribute(
    drain,
    "aria-label",
    worker.draining
      ? `Resume ${name}: give it sessions again`
      : `Drain ${name}: let it finish, give it no new session`,
  );
  setAttribute(clean, "aria-label", `Clean ${name}: cancel its sessions`);
  clean.disabled = worker.used === 0;
  drain.disabled = worker.status !== "ALIVE";
}

function setStatus(node, { status, draining }) {
  if (status === "ALIVE" && draining)
    setBadge(node, "Draining", "warn", "Keeps its sessions and gets no new one");
  else if (status === "ALIVE") setBadge(node, "Alive", "good");
  else if (status === "COMA") setBadge(node, "Silent", "bad", "Its heartbeats stopped");
  else setBadge(node, "Dead", "bad", "It cannot be reached");
}

function drainOrResume({ task, id, draining }) {
  const body = { name: task, worker_id: id, stale: !draining };
  return attempt(
    () => post("mark_stale", { body }),
    draining ? `Worker ${id} gets sessions again.` : `Worker ${id} gets no new session.`,
  );
}

async function cleanUp({ task, id, used }) {
  const yes = await confirm({
    title: `Cancel ${plural(used, "session")} of worker ${id}?`,
    text: "Their agents are told at once. What they have earned so far is not scored.",
    action: "Cancel them",
  });
  if (yes)
    await attempt(
      () => post("clean_worker", { body: { name: task, worker_id: id } }),
      `Worker ${id} holds no session any more.`,
    );
}
