// Light, dark, or as the system says.

import { h, say } from "./dom.js";

const KEY = "lakewright.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const WORDS = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };

const current = () => document.documentElement.dataset.theme ?? "auto";

function choose(theme) {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  try {
    if (theme === "auto") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // It lasts until the page is left.
  }
}

export function themeButton() {
  const button = h("button", { type: "button", id: "theme", class: "quiet" });
  const show = () => {
    button.textContent = WORDS[current()];
    button.setAttribute("aria-label", `Theme: ${current()}. Change it`);
  };
  button.addEventListener("click", () => {
    choose(NEXT[current()]);
    show();
    say(`theme: ${current()}`);
  });
  show();
  return button;
}
