// Line charts and sparklines in SVG, drawn by hand; every number is also in the legend or the read-out.

import { h, s, setText } from "./dom.js";
import { clock } from "./format.js";

const SPAN_S = 900;
const POINT_S = 5;
const MARGIN = { top: 8, right: 2, bottom: 20, left: 2 };
const HEIGHT = 172;
const MINUTES = [15, 10, 5, 0];

/** The next round number, so that grid lines stand at values people read at a glance. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.9999) * power;
}

/** Runs of neighbouring points that have a value: a gap in time or a missing value ends one. */
export function runs(points, key) {
  const found = [];
  let run = null;
  for (const point of points) {
    const value = point[key];
    if (typeof value !== "number") run = null;
    else if (run && point.at - run.at(-1).at <= 2 * POINT_S) run.push({ at: point.at, value });
    else found.push((run = [{ at: point.at, value }]));
  }
  return found;
}

function path(run, x, y) {
  // A lone point becomes a dot: a line of no length with round ends.
  return (
    run.map(({ at, value }, n) => `${n ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("") +
    (run.length === 1 ? "h0" : "")
  );
}

function area(run, x, y, floor) {
  return `${path(run, x, y)}L${x(run.at(-1).at).toFixed(1)} ${floor}L${x(run[0].at).toFixed(1)} ${floor}Z`;
}

/** Quarter of an hour of one or more series, with a read-out that follows pointer and arrow keys. */
export class LineChart {
  constructor({ title, series, format, tick = format, lowest = 0 }) {
    this.title = title;
    this.series = series;
    this.format = format;
    this.tick = tick;
    this.lowest = lowest; // The scale reaches at least this far.
    this.points = [];
    this.cursor = null;
    this.width = 0;
    this.when = h("span", { class: "when" });
    this.values = series.map(() => h("b"));
    this.spoken = h("span", { class: "hidden", "aria-live": "polite" });
    this.svg = s("svg", { height: HEIGHT, "aria-hidden": "true" });
    const legend = series.map(({ label, tone }, n) =>
      h("li", { class: tone }, h("i", { "aria-hidden": "true" }), `${label} `, this.values[n]),
    );
    this.plot = h("div", { class: "plot", tabindex: "0", role: "img" }, this.svg);
    this.element = h(
      "figure",
      { class: "chart panel" },
      h("figcaption", {}, h("h2", {}, title), this.when),
      h("ul", { class: "legend" }, legend),
      this.plot,
      this.spoken,
    );
    this.#listen();
  }

  show(points) {
    this.points = points;
    this.#draw();
  }

  #listen() {
    new ResizeObserver(([entry]) => {
      this.width = entry.contentRect.width;
      this.#draw();
    }).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => {
      const share = (event.clientX - this.plot.getBoundingClientRect().left - MARGIN.left) / this.#inner();
      this.#read(this.#first() + share * SPAN_S);
    });
    const leave = () => this.#read(null);
    this.plot.addEventListener("pointerleave", leave);
    this.plot.addEventListener("blur", leave);
    this.plot.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -POINT_S, ArrowRight: POINT_S, PageUp: -60, PageDown: 60 }[event.key];
      if (event.key === "Escape") leave();
      if (!step || !this.points.length) return;
      event.preventDefault();
      this.#read((this.cursor ?? this.points.at(-1).at) + step);
      setText(this.spoken, `${this.when.textContent}: ${this.#words(this.#at())}`);
    });
  }

  #inner() {
    return Math.max(1, this.width - MARGIN.left - MARGIN.right);
  }

  #first() {
    return (this.points.at(-1)?.at ?? 0) - SPAN_S;
  }

  #read(at) {
    const last = this.points.at(-1)?.at;
    this.cursor = at === null || last === undefined ? null : Math.min(last, Math.max(this.points[0].at, at));
    this.#draw();
  }

  /** The point under the cursor, or the newest whole one. */
  #at() {
    if (this.cursor === null) return this.points.at(-2) ?? this.points.at(-1);
    return this.points.reduce((best, point) =>
      Math.abs(point.at - this.cursor) < Math.abs(best.at - this.cursor) ? point : best,
    );
  }

  #words(point) {
    return this.series.map(({ label, key }) => `${label} ${this.format(point?.[key])}`).join(", ");
  }

  #draw() {
    if (!this.width) return;
    const { points, series, width } = this;
    const floor = HEIGHT - MARGIN.bottom;
    const top = ceiling(
      Math.max(this.lowest, ...points.flatMap((point) => series.map(({ key }) => point[key] ?? 0))),
    );
    const x = (at) => MARGIN.left + ((at - this.#first()) / SPAN_S) * this.#inner();
    const height = (share) => floor - share * (floor - MARGIN.top);
    const y = (value) => height(value / top);
    const shown = this.#at();
    // The first series is the one to see, so it is drawn last.
    const drawn = series.toReversed().flatMap((each) => lines(points, each, x, y, floor));
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(
      ...this.#grid(height),
      ...this.#times(floor),
      ...drawn,
      ...this.#scale(top, height),
      ...this.#cursor(shown, x, y, floor),
    );
    series.forEach(({ key }, n) => setText(this.values[n], this.format(shown?.[key])));
    setText(this.when, this.cursor === null || !shown ? "" : clock(shown.at));
    this.plot.setAttribute(
      "aria-label",
      `${this.title}, last 15 minutes. Now: ${this.#words(points.at(-2) ?? points.at(-1))}. Left and right read earlier values.`,
    );
  }

  #grid(y) {
    return [0, 0.5, 1].map((share) =>
      s("path", {
        class: share ? "grid" : "grid floor",
        d: `M0 ${Math.round(y(share)) + 0.5}H${this.width}`,
      }),
    );
  }

  #scale(top, y) {
    return [0.5, 1].map((share) => s("text", { x: 0, y: y(share) + 13 }, this.tick(top * share)));
  }

  #times(floor) {
    return MINUTES.map((minutes) => {
      const anchor = minutes === 15 ? "start" : minutes === 0 ? "end" : "middle";
      return s(
        "text",
        { x: MARGIN.left + (1 - minutes / 15) * this.#inner(), y: floor + 15, "text-anchor": anchor },
        minutes ? `−${minutes} min` : "now",
      );
    });
  }

  #cursor(shown, x, y, floor) {
    if (this.cursor === null || !shown) return [];
    const at = x(shown.at).toFixed(1);
    const dots = this.series
      .filter(({ key }) => typeof shown[key] === "number")
      .map(({ key, tone }) =>
        s("circle", { class: `dot ${tone}`, cx: at, cy: y(shown[key]).toFixed(1), r: 3.5 }),
      );
    return [s("path", { class: "cursor", d: `M${at} ${MARGIN.top}V${floor}` }), ...dots];
  }
}

function lines(points, { key, tone, filled }, x, y, floor) {
  return runs(points, key).flatMap((run) => [
    ...(filled ? [s("path", { class: `area ${tone}`, d: area(run, x, y, floor) })] : []),
    s("path", { class: `line ${tone}`, d: path(run, x, y) }),
  ]);
}

/** A small line without axes, beside a number that says the same. */
export class Sparkline {
  constructor() {
    this.element = s("svg", {
      class: "spark",
      viewBox: "0 0 120 32",
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    });
  }

  show(points, key) {
    const last = points.at(-1)?.at ?? 0;
    const top = Math.max(1e-9, ...points.map((point) => point[key] ?? 0)) * 1.1;
    const x = (at) => 120 * (1 - (last - at) / SPAN_S);
    const y = (value) => 31 - 30 * (value / top);
    this.element.replaceChildren(...lines(points, { key, tone: "c1", filled: true }, x, y, 32));
  }
}
