// Overview: how much is going on, how fast it goes, which tasks there are.

import { LineChart, Sparkline } from "./charts.js";
import { command, empty } from "./dialogs.js";
import { h, Keyed, setText } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";
import { Rows } from "./keys.js";
import { bar, columns, setBar } from "./widgets.js";

/** Durations without the zeros that a scale has no use for. */
const round = (seconds) => duration(seconds).replace(/\.0+(?= )/, "");

class Tile {
  constructor(label, key) {
    this.key = key;
    this.value = h("dd", { class: "value" });
    this.note = h("dd", { class: "note" });
    this.spark = new Sparkline();
    this.element = h(
      "dl",
      { class: "tile panel" },
      h("dt", {}, label),
      this.value,
      this.note,
      this.spark.element,
    );
  }

  show(value, note, points) {
    setText(this.value, value);
    setText(this.note, note);
    this.spark.show(points, this.key);
  }
}

export function overview() {
  const tiles = {
    live: new Tile("Live sessions", "live"),
    waiting: new Tile("Waiting for a slot", "waiting"),
    requests: new Tile("Requests a second", "requests_per_s"),
    p50: new Tile("Typical turn (p50)", "interact_p50_s"),
    p99: new Tile("Slow turn (p99)", "interact_p99_s"),
  };
  const charts = [
    new LineChart({
      title: "Requests a second",
      format: rate,
      tick: count,
      series: [
        { key: "requests_per_s", label: "Requests", tone: "c1", filled: true },
        { key: "errors_per_s", label: "Errors", tone: "c4" },
      ],
    }),
    new LineChart({
      title: "Time of a turn",
      format: duration,
      tick: round,
      series: [
        { key: "interact_p99_s", label: "p99", tone: "c2" },
        { key: "interact_p50_s", label: "p50", tone: "c1" },
        { key: "worker_p50_s", label: "worker p50", tone: "c3 dashed" },
      ],
    }),
    new LineChart({
      title: "Sessions",
      format: count,
      lowest: 2,
      series: [
        { key: "live", label: "Live", tone: "c1", filled: true },
        { key: "waiting", label: "Waiting", tone: "c2" },
      ],
    }),
  ];
  const tasks = taskTable();
  const nothing = empty(
    "No task worker yet",
    h("p", {}, "Tasks appear here as soon as a worker that serves one registers."),
    command(`agentrl-env serve my_task.py --controller ${new URL("api", document.baseURI)}`),
  );
  nothing.hidden = true;
  const rows = new Rows(tasks.element);
  return {
    title: "Overview",
    query: { view: "overview" },
    element: [
      h(
        "div",
        { class: "tiles" },
        Object.values(tiles).map((tile) => tile.element),
      ),
      h(
        "div",
        { class: "charts" },
        charts.map((chart) => chart.element),
      ),
      h("section", {}, h("h2", { id: "tasks" }, "Tasks"), nothing, tasks.element),
    ],
    keys: rows.bindings,
    render(state) {
      const points = Object.values(state.points).sort((one, other) => one.at - other.at);
      showTiles(tiles, state, points);
      for (const chart of charts) chart.show(points);
      const names = Object.keys(state.tasks).sort();
      nothing.hidden = names.length > 0;
      tasks.element.hidden = names.length === 0;
      tasks.rows.show(names, state.tasks);
      rows.refresh();
    },
  };
}

function showTiles(tiles, state, points) {
  const capacity = Object.values(state.tasks).reduce((sum, task) => sum + task.capacity, 0);
  const busy = state.states.busy ?? 0;
  tiles.live.show(
    count(state.live),
    state.live
      ? `${count(busy)} in the environment, ${count(state.live - busy)} with the agent`
      : capacity
        ? `${plural(capacity, "slot")} free`
        : "no slot yet",
    points,
  );
  tiles.waiting.show(
    count(state.waiting),
    state.waiting ? `for ${plural(capacity, "slot")}` : "nobody waits",
    points,
  );
  tiles.requests.show(
    rate(state.requests_per_s),
    state.errors_per_s ? `${rate(state.errors_per_s)} errors a second` : "no errors",
    points,
  );
  tiles.p50.show(duration(state.interact_p50_s), latencyNote(state.worker_p50_s), points);
  tiles.p99.show(duration(state.interact_p99_s), latencyNote(state.worker_p99_s), points);
}

function latencyNote(workerS) {
  return workerS === null || workerS === undefined
    ? "no turn in the last minute"
    : `${duration(workerS)} of it in the worker`;
}

function taskTable() {
  const body = h("tbody");
  const element = h(
    "div",
    { class: "table panel" },
    h(
      "table",
      { "aria-labelledby": "tasks" },
      columns(["Task", "Workers", "Slots used", "Waiting", "Samples"], { numbers: ["Waiting", "Samples"] }),
      body,
    ),
  );
  const rows = new Keyed(body, {
    create: (task) => {
      const cells = {
        workers: h("td"),
        load: bar(),
        waiting: h("td", { class: "number" }),
        samples: h("td", { class: "number" }),
      };
      const row = h(
        "tr",
        {},
        h(
          "th",
          { scope: "row" },
          h(
            "a",
            { href: `#/sessions?task=${encodeURIComponent(task.name)}`, "data-row": true, tabindex: "-1" },
            task.name,
          ),
        ),
        cells.workers,
        h("td", {}, cells.load),
        cells.waiting,
        cells.samples,
        h(
          "td",
          { class: "actions" },
          h(
            "a",
            {
              class: "button",
              href: `#/play?task=${encodeURIComponent(task.name)}`,
              "aria-label": `Play ${task.name}`,
            },
            "Play",
          ),
        ),
      );
      row.cells_ = cells;
      return row;
    },
    update: (row, task) => {
      const { workers, load, waiting, samples } = row.cells_;
      setText(workers, workersText(task));
      setBar(load, task.used, task.capacity, `slots of ${task.name}`);
      load.toggleAttribute("data-short", task.waiting > 0);
      setText(waiting, count(task.waiting));
      waiting.classList.toggle("warn", task.waiting > 0);
      setText(samples, count(task.num_samples));
    },
  });
  return { element, rows };
}

function workersText(task) {
  const lost = task.workers_total - task.workers_alive;
  const notes = [
    lost ? `${lost} lost` : "",
    task.workers_draining ? `${task.workers_draining} draining` : "",
  ].filter(Boolean);
  return [`${task.workers_alive} alive`, ...notes].join(", ");
}
