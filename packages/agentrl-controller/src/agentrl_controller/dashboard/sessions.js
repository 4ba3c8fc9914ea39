// Sessions: a page at a time, narrowed by filters. Rows do not move under a pointer or a focus.

import { empty } from "./dialogs.js";
import { h, icon, Keyed, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { Rows } from "./keys.js";
import { badge, columns, setBadge, setState, setTime, STATE_NAMES, time } from "./widgets.js";

const FILTERS = ["search", "task", "state", "worker"];
const LIMIT = 50;
const SEARCH_MS = 200;

let lastOpened = null; // Where the focus goes when somebody comes back from a session.

export function sessions(page) {
  return new SessionList(page);
}

class SessionList {
  constructor(page) {
    this.page = page;
    this.title = "Sessions";
    this.isPointed = false;
    this.isFocused = false;
    this.wantsFocus = lastOpened;
    this.shown = [];
    this.past = []; // Cursors of the pages before this one.
    this.#build();
    this.query = this.queryOf(page.params);
    this.keys = {
      ...this.rows.bindings,
      n: () => this.#turn(1),
      p: () => this.#turn(-1),
      r: () => this.#renew(),
    };
  }

  queryOf(params) {
    const wanted = Object.fromEntries(FILTERS.map((name) => [name, params.get(name) ?? ""]));
    for (const name of FILTERS)
      if (this.fields[name] !== document.activeElement) this.#setField(name, wanted[name]);
    const cursor = params.get("cursor");
    return { view: "sessions", limit: LIMIT, ...wanted, ...(cursor ? { cursor } : {}) };
  }

  #build() {
    const body = h("tbody");
    const names = ["Session", "Task", "Sample", "State", "Worker", "Turns", "Started", "Last used"];
    this.table = h(
      "div",
      { class: "table panel" },
      h(
        "table",
        { "aria-label": "Live sessions" },
        columns(names, { numbers: ["Turns"], actions: false }),
        body,
      ),
    );
    this.rows = new Rows(this.table);
    this.keyed = new Keyed(body, { create, update });
    this.nothing = h("div");
    this.newer = h("button", { type: "button", class: "pill", onclick: () => this.#renew() });
    this.newer.hidden = true;
    this.found = h("p", { class: "found", role: "status" });
    this.#buildFilters();
    this.#buildPager();
    this.element = [this.filters, this.nothing, this.table, this.pager];
    body.addEventListener("pointerenter", () => this.#hold({ isPointed: true }));
    body.addEventListener("pointerleave", () => this.#hold({ isPointed: false }));
    body.addEventListener("focusin", (event) =>
      this.#hold({ isFocused: event.target.matches(":focus-visible") }),
    );
    body.addEventListener("focusout", (event) =>
      this.#hold({ isFocused: body.contains(event.relatedTarget) }),
    );
    body.addEventListener("click", (event) => {
      lastOpened = event.target.closest("a")?.textContent ?? lastOpened;
    });
  }

  #buildFilters() {
    const change = (name) => () => this.#filter(name, this.fields[name].value.trim());
    const options = (first, rest) => [
      h("option", { value: "" }, first),
      ...rest.map(({ value, label }) => h("option", { value }, label)),
    ];
    this.fields = {
      search: h("input", {
        type: "search",
        placeholder: "Search id or sample",
        "aria-label": "Search sessions",
        "data-search": true,
      }),
      task: h("select", { "aria-label": "Task", onchange: change("task") }, options("All tasks", [])),
      state: h(
        "select",
        { "aria-label": "State", onchange: change("state") },
        options("All states", STATE_NAMES),
      ),
      worker: h("input", {
        class: "short",
        inputmode: "numeric",
        placeholder: "Worker",
        "aria-label": "Worker id",
      }),
    };
    for (const name of ["search", "worker"]) {
      this.fields[name].addEventListener("input", () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(change(name), SEARCH_MS);
      });
    }
    this.clear = h(
      "button",
      {
        type: "button",
        class: "ghost",
        onclick: () => this.page.change(Object.fromEntries([...FILTERS, "cursor"].map((name) => [name, ""]))),
      },
      "Clear",
    );
    this.filters = h(
      "div",
      { class: "filters" },
      h("div", { class: "search" }, icon("search"), this.fields.search),
      this.fields.task,
      this.fields.state,
      this.fields.worker,
      this.clear,
      this.newer,
      this.found,
    );
  }

  #buildPager() {
    this.range = h("span");
    this.back = h("button", { type: "button", onclick: () => this.#turn(-1) }, icon("left"), "Newer");
    this.forth = h("button", { type: "button", onclick: () => this.#turn(1) }, "Older", icon("right"));
    this.pager = h("nav", { class: "pager", "aria-label": "Pages" }, this.back, this.range, this.forth);
  }

  #setField(name, value) {
    // A task that is not served at the moment can still be asked for.
    if (name === "task" && value && ![...this.fields.task.options].some((option) => option.value === value))
      this.fields.task.append(h("option", { value }, value));
    this.fields[name].value = value;
  }

  #filter(name, value) {
    this.past = [];
    this.page.change({ [name]: value, cursor: "" });
  }

  #turn(step) {
    this.wantsFocus = this.rows.focused ? "first" : null;
    if (step > 0 && this.state?.next) {
      this.past.push(this.page.params.get("cursor") ?? "");
      this.page.change({ cursor: this.state.next });
    } else if (step < 0 && this.page.params.get("cursor")) {
      this.page.change({ cursor: this.past.pop() ?? "" });
    }
    scrollTo({ top: 0 });
  }

  #hold(changed) {
    Object.assign(this, changed);
    // Not at once: a row that is being taken away tells that it lost the focus.
    queueMicrotask(() => {
      if (!this.isPointed && !this.isFocused && this.state && this.table.isConnected) this.render(this.state);
    });
  }

  #renew() {
    this.reset();
    if (this.state) this.render(this.state);
  }

  /** Whatever was held belongs to the past. */
  reset() {
    this.shown = [];
  }

  render(state) {
    this.state = state;
    const isHeld = (this.isPointed || this.isFocused) && this.shown.length > 0;
    if (!isHeld) this.shown = [...state.order];
    const fresh = state.order.filter((key) => !this.shown.includes(key)).length;
    this.newer.hidden = fresh === 0;
    if (fresh) setText(this.newer, `${fresh} newer`);
    this.keyed.show(this.shown, this.#rowsOf(state));
    this.rows.refresh();
    this.#showAround(state);
    this.#focus();
  }

  #focus() {
    const row =
      this.wantsFocus === "first"
        ? this.rows.all[0]
        : this.rows.all.find((each) => each.textContent === this.wantsFocus);
    this.wantsFocus = null;
    row?.focus();
  }

  #rowsOf(state) {
    const rows = { ...state.sessions };
    for (const key of this.shown) rows[key] ??= { ...this.last?.[key], isGone: true };
    this.last = rows;
    return rows;
  }

  #showAround(state) {
    setText(this.found, plural(state.found, "live session"));
    const isFiltered = FILTERS.some((name) => this.page.params.get(name));
    this.clear.hidden = !isFiltered;
    this.table.hidden = this.shown.length === 0;
    this.nothing.hidden = this.shown.length > 0;
    if (this.shown.length === 0) this.nothing.replaceChildren(nobody(state, isFiltered));
    setText(
      this.range,
      state.order.length
        ? `${count(state.before + 1)}–${count(state.before + state.order.length)} of ${count(state.found)}`
        : "",
    );
    this.back.disabled = !this.page.params.get("cursor");
    this.forth.disabled = !state.next;
    this.pager.hidden = this.back.disabled && this.forth.disabled;
    const known = new Set([...this.fields.task.options].map((option) => option.value));
    for (const name of state.task_names)
      if (!known.has(name)) this.fields.task.append(h("option", { value: name }, name));
  }

  close() {
    clearTimeout(this.timer);
  }
}

function nobody(state, isFiltered) {
  if (isFiltered)
    return empty(
      "No live session matches",
      h(
        "p",
        {},
        `${plural(state.live, "session")} live in all. Sessions that ended are found by their address only.`,
      ),
    );
  return empty(
    "No live session",
    h("p", {}, "Sessions appear here as soon as an agent starts one. "),
    h("a", { class: "button", href: "#/play" }, "Play one by hand"),
  );
}

function create(session) {
  const cells = { state: badge(), turns: h("td", { class: "number" }), used: time() };
  const started = time();
  setTime(started, session.started);
  const row = h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      h(
        "a",
        { class: "mono", href: `#/sessions/${session.id}`, "data-row": true, tabindex: "-1" },
        session.id,
      ),
    ),
    h("td", {}, session.task),
    h("td", {}, String(session.index)),
    h("td", {}, cells.state),
    h("td", {}, String(session.worker)),
    cells.turns,
    h("td", {}, started),
    h("td", {}, cells.used),
  );
  row.cells_ = cells;
  return row;
}

function update(row, session) {
  row.classList.toggle("gone", Boolean(session.isGone));
  if (session.isGone) return setBadge(row.cells_.state, "Ended", "quiet", "It is no longer live");
  setState(row.cells_.state, session.state);
  setText(row.cells_.turns, count(session.num_exchanges));
  setTime(row.cells_.used, session.last_used);
  return undefined;
}
