// Rewards of a session: a bar for each answer, the running total as a line, the sum as a number.

import { h, s, setText } from "./dom.js";
import { decimal, signed } from "./format.js";

const WIDTH = 268;
const HEIGHT = 72;
const MAX_BARS = 60;

export class Rewards {
  constructor() {
    this.label = h("dt");
    this.total = h("dd", { class: "value" });
    this.note = h("dd", { class: "note" });
    this.svg = s("svg", { class: "bars", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.element = h(
      "div",
      { class: "rewards panel" },
      h("dl", { class: "tile" }, this.label, this.total, this.note),
      this.svg,
    );
  }

  show({ reward, rewards, is_live: isLive }) {
    setText(this.label, isLive ? "Reward so far" : "Reward");
    setText(this.total, decimal(reward));
    this.total.classList.toggle("bad", reward < 0);
    setText(this.note, noteOf(rewards));
    this.svg.toggleAttribute("hidden", rewards.length < 2);
    const label = `Rewards by answer: ${rewards.slice(-MAX_BARS).map(signed).join(", ")}`;
    if (this.svg.getAttribute("aria-label") === label) return;
    this.svg.setAttribute("aria-label", label);
    this.svg.replaceChildren(...draw(rewards));
  }
}

function noteOf(rewards) {
  const given = rewards.filter((reward) => reward !== 0).length;
  return given ? `${given} of ${rewards.length} answers brought some` : "nothing earned yet";
}

function draw(rewards) {
  let sum = 0;
  const totals = rewards.map((reward) => (sum += reward)).slice(-MAX_BARS);
  const shown = rewards.slice(-MAX_BARS);
  const high = Math.max(0, ...shown, ...totals);
  const low = Math.min(0, ...shown, ...totals);
  const y = (value) => HEIGHT - 3 - ((value - low) / (high - low || 1)) * (HEIGHT - 6);
  const step = WIDTH / Math.max(8, shown.length);
  const bars = shown.map((reward, n) =>
    s(
      "rect",
      {
        class: reward < 0 ? "bar bad" : "bar good",
        x: n * step + step * 0.2,
        width: step * 0.6,
        rx: 1.5,
        y: Math.min(y(0), y(reward)),
        height: Math.max(reward ? 1.5 : 0, Math.abs(y(reward) - y(0))),
      },
      s("title", {}, `Answer ${rewards.length - shown.length + n + 1}: ${signed(reward)}`),
    ),
  );
  const line = totals
    .map((total, n) => `${n ? "L" : "M"}${((n + 0.5) * step).toFixed(1)} ${y(total).toFixed(1)}`)
    .join("");
  return [
    s("path", { class: "grid floor", d: `M0 ${y(0).toFixed(1)}H${WIDTH}` }),
    ...bars,
    s("path", { class: "line c1", d: line }),
  ];
}
