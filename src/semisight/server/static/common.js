// What all pages share: asking the server, making elements, the token, and the line at the top.

export function make(tag, properties = {}, ...children) {
  const { style = {}, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const percent = (p) => (p >= 0.9995 ? "100%" : p >= 0.0995 ? `${(100 * p).toFixed(0)}%` : `${(100 * p).toFixed(1)}%`);
export const imageAddress = (file) => `/api/images?file=${encodeURIComponent(file)}`;

// Small pictures are shown with their pixels as squares, larger ones smooth.
export function sharpen(image) {
  image.classList.toggle("sharp", image.naturalWidth > 0 && image.naturalWidth < 100);
}

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Asks until the server is there and has room: `patience` is how often it is asked again.
export async function ask(path, { method = "GET", json, body, type, patience = 3 } = {}) {
  for (let turn = 0; ; turn++) {
    const headers = {};
    if (json !== undefined) headers["Content-Type"] = "application/json";
    if (type) headers["Content-Type"] = type;
    let answer;
    try {
      answer = await fetch(path, { method, headers, body: json === undefined ? body : JSON.stringify(json) });
    } catch {
      if (turn >= patience) throw new Refusal(0, "the server does not answer");
      await sleep(1000);
      continue;
    }
    if (answer.status === 401) {
      await askForToken();
      continue;
    }
    if (answer.status === 503 && turn < patience) {
      await sleep(1000 * Math.min(5, Number(answer.headers.get("Retry-After")) || 1));
      continue;
    }
    const content = await answer.json().catch(() => ({ detail: `the server answered with ${answer.status}` }));
    if (!answer.ok) throw new Refusal(answer.status, content.detail);
    return content;
  }
}

async function login(token) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch("/api/session", { method: "POST", headers, body: JSON.stringify({ token }) });
  return answer.ok;
}

let asking = null;

function askForToken() {
  asking ??= new Promise((resolve) => {
    const given = /^#token=(.+)$/.exec(location.hash)?.[1];
    history.replaceState(null, "", location.pathname);
    const input = make("input", { name: "token", type: "password", autocomplete: "current-password", required: true });
    const wrong = make("p", { className: "soft", textContent: "It was printed when the server was started." });
    const form = make("form", { method: "dialog" }, make("h2", { textContent: "A token is needed" }), wrong, input,
      make("button", { className: "main", textContent: "Enter" }));
    const dialog = make("dialog", {}, form);
    const enter = async (token) => {
      if (await login(token)) {
        dialog.remove();
        asking = null;
        resolve();
      } else {
        wrong.textContent = "That is not the token.";
        if (!dialog.open) dialog.showModal();
      }
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      enter(input.value.trim());
    });
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(dialog);
    if (given) enter(decodeURIComponent(given));
    else dialog.showModal();
  });
  return asking;
}

export async function status(patience = 3) {
  const found = await ask("/api/status", { patience });
  byId("run").textContent = found.run.split("/").pop();
  byId("run").title = found.run;
  return found;
}

export function advise(text, bad = false) {
  const note = byId("advice");
  note.textContent = text;
  note.hidden = !text;
  note.classList.toggle("bad", bad);
}
