// Asking the server. The token that every request needs comes with the link, behind `#`, and stays in this tab.

const KEY = "lakewright.token";

export class Refused extends Error {
  constructor(status, document) {
    super(document.error ?? `the server answered with ${status}`);
    this.status = status;
    this.facts = document.facts;
  }
}

let token = null;

export function takeToken() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  try {
    if (found) sessionStorage.setItem(KEY, found[1]);
    token = sessionStorage.getItem(KEY);
  } catch {
    token = found ? found[1] : null;
  }
  if (found) history.replaceState(null, "", location.pathname + location.search);
}

export function setToken(text) {
  token = text.trim();
  try { sessionStorage.setItem(KEY, token); } catch { /* It is kept until the page is left. */ }
}

async function answered(response) {
  let document = {};
  try { document = await response.json(); } catch { /* No JSON: the status tells. */ }
  if (!response.ok) throw new Refused(response.status, document);
  return document;
}

const proof = () => (token ? { "x-lakewright-token": token } : {});

// Whether a request was refused for want of the right token.
export const wantsToken = (error) => error.status === 401 || (error.status === 403 && error.message.includes("token"));

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refused(0, { error: "the server does not answer: is it still running?" });
  }
  return answered(response);
}

export function look(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== undefined && value !== ""));
  // Of a table without partitions the only one has no name, which is an answer as well.
  if (parameters.partition === "") query.set("partition", "");
  const text = query.toString();
  return asked(`api/tables${path}${text ? `?${text}` : ""}`, { headers: { accept: "application/json", ...proof() } });
}

export const change = (path, body = {}) =>
  asked(`api/tables${path}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...proof() },
    body: JSON.stringify(body),
  });
