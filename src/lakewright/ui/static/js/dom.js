// Making elements. Whatever comes from a table goes in as text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function put(element, ...children) {
  element.replaceChildren();
  return fill(element, null, children);
}

// What is said to people who do not see the page.
export function say(text) {
  const place = document.getElementById("said");
  place.textContent = "";
  setTimeout(() => { place.textContent = text; }, 50);
}

export function showTip(event, ...lines) {
  const tip = document.getElementById("tip");
  put(tip, lines.filter(Boolean).map((line, index) => h(index ? "div" : "strong", null, line)));
  tip.hidden = false;
  const { innerWidth, innerHeight } = window;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const below = event.clientY + 16;
  const top = below + box.height > innerHeight ? event.clientY - box.height - 10 : below;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

export function hideTip() {
  document.getElementById("tip").hidden = true;
}

export const panel = (id, title, tools, ...content) =>
  h("section", { class: "panel", id, "aria-labelledby": `${id}-title` },
    h("div", { class: "panel-head" }, h("h2", { id: `${id}-title` }, title), h("div", { class: "tools" }, tools)),
    content);

export const empty = (title, text) => h("div", { class: "empty" }, h("strong", null, title), h("p", null, text));

export const failure = (error, again) =>
  h("div", { class: "failed", role: "alert" }, h("p", null, error.message),
    error.facts && Object.keys(error.facts).length
      ? h("p", { class: "facts" }, Object.entries(error.facts).map(([k, v]) => `${k}: ${typeof v === "string" ? v : JSON.stringify(v)}`).join("  ·  "))
      : null,
    again ? h("button", { type: "button", onclick: again }, "Try again") : null);
