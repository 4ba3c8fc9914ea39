// Elements made by hand. Data only ever becomes text or an attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Properties: `on...` listens, `class`, booleans set or leave out, the rest are attributes. */
export function h(tag, properties = {}, ...children) {
  return build(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function s(tag, properties = {}, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An icon of the sprite in the page. */
export function icon(name) {
  return s("svg", { class: "icon", "aria-hidden": "true" }, s("use", { href: `#i-${name}` }));
}

/** Change a text only where it differs, which keeps a selection in it. */
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Change an attribute; null and false take it away. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

/** A name that nothing else has; `crypto.randomUUID` is for pages over HTTPS alone. */
export function uniqueId() {
  return [...crypto.getRandomValues(new Uint8Array(8))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}

/** Children by key: makes new ones, updates known ones, drops the others, keeps focus and scroll. */
export class Keyed {
  constructor(parent, { create, update }) {
    this.parent = parent;
    this.create = create;
    this.update = update;
    this.nodes = new Map();
  }

  drop(key) {
    this.nodes.get(key)?.remove();
    this.nodes.delete(key);
  }

  show(keys, rows) {
    const wanted = new Set(keys);
    for (const key of [...this.nodes.keys()]) if (!wanted.has(key)) this.drop(key);
    const focused = document.activeElement;
    let next = this.parent.firstElementChild;
    for (const key of keys) {
      let node = this.nodes.get(key);
      if (node === undefined) {
        node = this.create(rows[key], key);
        this.nodes.set(key, node);
      }
      this.update?.(node, rows[key], key);
      if (node === next) next = next.nextElementSibling;
      else this.parent.insertBefore(node, next);
    }
    // A node that moves loses the focus.
    if (focused !== document.activeElement && this.parent.contains(focused))
      focused.focus({ preventScroll: true });
  }
}
