// Numbers and times as people read them.

const NONE = "–";
const grouped = new Intl.NumberFormat("en-US");
const clockTime = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hour12: false,
});
const dayTime = new Intl.DateTimeFormat(undefined, {
  dateStyle: "medium",
  timeStyle: "medium",
  hourCycle: "h23",
});

export const count = (value) => (value === null || value === undefined ? NONE : grouped.format(value));

/** `1 session`, `2 sessions`. */
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** Something a second. */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 100) return grouped.format(Math.round(value));
  return value >= 10 ? value.toFixed(1) : value === 0 ? "0" : value.toFixed(2);
}

/** Seconds with three digits and a fitting unit. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${digits(seconds * 1e3)} ms`;
  if (seconds < 99.5) return `${digits(seconds)} s`;
  return long(seconds);
}

function digits(value) {
  return value >= 99.5 ? value.toFixed(0) : value >= 9.95 ? value.toFixed(1) : value.toFixed(2);
}

/** Seconds as people count long times. */
export function long(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** How long ago, in one unit. */
export function ago(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export const clock = (at) => clockTime.format(new Date(at * 1000));
export const date = (at) => dayTime.format(new Date(at * 1000));

/** A number with at most three decimals. */
export function decimal(value) {
  if (typeof value !== "number") return String(value);
  return String(Math.round(value * 1000) / 1000).replace("-", "−");
}

/** A reward with its sign. */
export const signed = (value) => (value > 0 ? `+${decimal(value)}` : decimal(value));

export const bytes = (size) =>
  size >= 2 ** 20 ? `${(size / 2 ** 20).toFixed(1)} MiB` : `${Math.ceil(size / 1024)} KiB`;
