// The page to label: suggestions one after the other, by keyboard or touch. What was chosen is sent in order and asked
// again until the server has it on disk, so that going on does not wait for the disk, nor for a server that restarts.
import { advise, ask, byId, imageAddress, make, percent, sharpen, sleep, status } from "./common.js";

const AHEAD = 8;
const KEYS = "1234567890";
const FEW = 10; // classes: each has a key of its own; of more, the model's best guesses have the keys
const MOST_SHOWN = 200; // further classes below the field
let queue = []; // suggestions; the first is on the easel
let classes = [];
let current = null;
let counts = {};
let total = 0;
const past = []; // files that were labelled or skipped here
const sending = []; // [path, content] not yet confirmed
let busy = false;
let asking = null;
let training = "none";

// --- sending

function send(path, content) {
  sending.push([path, content]);
  deliver();
}

async function deliver() {
  if (busy) return;
  busy = true;
  while (sending.length) {
    const [path, content] = sending[0];
    say(sending.length > 1 ? `saving ${sending.length}` : "saving", "busy");
    try {
      const answer = await ask(path, { method: "POST", json: content, patience: 0 });
      if (answer.labelled !== undefined) showCount(answer.labelled);
      sending.shift();
    } catch (error) {
      if (error.status === 0 || error.status === 503) {
        say(`${error.message}; ${sending.length} not saved yet`, "bad");
        await sleep(700);
      } else {
        sending.shift();
        advise(`${content.file}: ${error.message}`, true);
      }
    }
  }
  busy = false;
  say("saved", "");
}

function say(words, kind) {
  byId("saved").textContent = words;
  byId("saved").className = kind;
}

window.addEventListener("beforeunload", (event) => {
  if (sending.length) event.preventDefault();
});

// --- the easel

function refill() {
  asking ??= fetchMore().finally(() => (asking = null));
  return asking;
}

async function fetchMore() {
  try {
    const found = await ask(`/api/suggestions?n=${Math.min(50, AHEAD + 1 + sending.length + queue.length)}`, { patience: 1000 });
    const had = new Set([current?.file, ...queue.map((one) => one.file), ...past, ...sending.map(([, one]) => one.file)]);
    queue.push(...found.images.filter((one) => !had.has(one.file)));
    if (!sameWords(classes, found.classes)) {
      classes = [...found.classes, ...classes.filter((name) => !found.classes.includes(name))];
      if (current) showChoices();
    }
    for (const one of queue.slice(0, AHEAD)) new Image().src = imageAddress(one.file);
    if (!current && queue.length) next();
    else if (!current) byId("file").textContent = "No image is waiting for a label";
  } catch (error) {
    advise(error.message, true);
    if (!current) setTimeout(refill, 2000); // nothing to label meanwhile: nobody else would ask again
  }
}

const sameWords = (a, b) => a.length === b.length && a.every((word, i) => word === b[i]);

function next() {
  current = queue.shift() ?? null;
  byId("caption").value = current?.caption ?? "";
  byId("word").value = "";
  byId("undo").disabled = past.length === 0;
  const image = byId("image");
  image.hidden = !current;
  byId("skip").disabled = !current;
  if (current) {
    image.src = imageAddress(current.file);
    image.alt = current.file;
  }
  byId("file").textContent = current?.file ?? "Looking for more images";
  showChoices();
  if (queue.length < AHEAD / 2) refill();
}

const guessed = () => (current?.guesses ?? []).map((one) => one.label);

// What has a key: few classes always the same, of many the best guesses, the best first, and then the most used.
function offered() {
  if (classes.length <= FEW) return classes;
  const often = classes.filter((name) => counts[name]).sort((a, b) => counts[b] - counts[a]);
  return [...new Set([...guessed(), ...often, ...classes])].slice(0, 9);
}

// A class called 7 has the key 7 where there are few; the others have those that are left, in their order.
function keysOf(names) {
  if (classes.length > FEW) return new Map(names.map((name, i) => [name, KEYS[i]]));
  const own = new Set(names.filter((name) => name.length === 1 && KEYS.includes(name)));
  const left = [...KEYS].filter((key) => !own.has(key));
  const keys = new Map();
  for (const name of names) {
    const key = own.has(name) ? name : left.shift();
    if (key !== undefined) keys.set(name, key);
  }
  return keys;
}

function choiceOf(name, key, marked) {
  const p = (current?.guesses ?? []).find((one) => one.label === name)?.probability;
  const button = make("button", { type: "button", title: name, className: marked ? "guess" : "" });
  if (p !== undefined) button.append(make("i", { style: { width: `${100 * p}%` } }));
  if (key !== undefined) button.append(make("kbd", { textContent: key }));
  button.append(make("span", { className: "name", textContent: name }));
  if (p !== undefined) button.append(make("span", { className: "share", textContent: percent(p) }));
  button.addEventListener("click", () => choose(name));
  return button;
}

function showChoices() {
  const shown = current ? offered() : [];
  const keys = keysOf(shown);
  const typed = byId("word").value.trim();
  byId("choices").replaceChildren(...shown.map((name) => choiceOf(name, keys.get(name), !typed && name === guessed()[0])));
  const rest = typed ? found(typed) : classes.filter((name) => !shown.includes(name));
  const list = (current ? rest : []).slice(0, MOST_SHOWN).map((name, i) => choiceOf(name, undefined, typed && i === 0));
  if (current && typed && !exact(typed)) {
    const fresh = make("button", { type: "button", className: "fresh", textContent: `new class: ${typed}` });
    fresh.addEventListener("click", () => askForNew(typed));
    list.push(fresh);
  }
  byId("rest").replaceChildren(...list);
}

const plain = (text) => text.toLowerCase().replace(/[\s_-]+/g, " ").trim();
const exact = (typed) => classes.find((name) => plain(name) === plain(typed));

// Those that begin with what was typed come first, then those that hold it.
function found(typed) {
  const held = classes.filter((name) => plain(name).includes(plain(typed)));
  return held.sort((a, b) => plain(b).startsWith(plain(typed)) - plain(a).startsWith(plain(typed)));
}

function useTyped() {
  const typed = byId("word").value.trim().replace(/\s+/g, " ");
  if (!current || !typed) return;
  const known = exact(typed) ?? found(typed)[0];
  if (known === undefined) askForNew(typed);
  else choose(known);
}

// A class that nobody meant is hard to get rid of: it is asked about before it exists.
function askForNew(name) {
  const start = plain(name).slice(0, 3);
  const near = classes.filter((one) => plain(one).startsWith(start)).slice(0, 3);
  byId("newwords").textContent = `There is no class “${name}” yet.` + (near.length ? ` Did you mean ${near.join(", ")}?` : "");
  const dialog = byId("new");
  // Answered in the event itself: the dialog's own close event comes later, and a key pressed in between would
  // have moved on, so that the new class fell to the next image.
  dialog.querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    dialog.close();
    if (event.submitter.value === "make") choose(name);
    else byId("word").focus();
  };
  dialog.showModal();
  byId("make").focus();
}

function choose(label) {
  const name = label.trim().replace(/\s+/g, " ");
  if (!current || !name) return;
  const content = { file: current.file, label: name };
  const caption = byId("caption").value.trim();
  if (caption && caption !== current.caption) content.caption = caption;
  if (!classes.includes(name)) classes.push(name);
  counts[name] = (counts[name] ?? 0) + 1;
  finish("/api/labels", content);
}

function describe() {
  const caption = byId("caption").value.trim();
  if (current && caption) finish("/api/labels", { file: current.file, caption });
}

function finish(path, content) {
  past.push(current.file);
  send(path, content);
  document.activeElement?.blur();
  next();
}

function takeBack() {
  const file = past.pop();
  if (file === undefined) return;
  send("/api/labels/undo", { file });
  if (current) queue.unshift(current);
  queue = queue.filter((one) => one.file !== file);
  queue.unshift({ file, label: "", caption: "", guesses: [] });
  next();
  setTimeout(refreshStatus, 500);
}

byId("image").addEventListener("load", (event) => sharpen(event.target));
byId("skip").addEventListener("click", () => current && finish("/api/labels/skip", { file: current.file }));
byId("undo").addEventListener("click", takeBack);
byId("other").addEventListener("submit", (event) => {
  event.preventDefault();
  useTyped();
});
byId("word").addEventListener("input", showChoices);
byId("describe").addEventListener("submit", (event) => {
  event.preventDefault();
  describe();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (byId("new").open) return;
  if (event.key === "Escape") {
    byId("word").value = "";
    document.activeElement?.blur();
    showChoices();
  }
  if (event.target.matches("input")) return;
  const actions = { s: () => byId("skip").click(), u: takeBack, Backspace: takeBack, c: () => byId("caption").focus(), "/": () => byId("word").focus() };
  if (event.key.length === 1 && KEYS.includes(event.key)) {
    const chosen = [...keysOf(offered())].find(([, key]) => key === event.key);
    if (!event.repeat && chosen) choose(chosen[0]);
  } else if (event.key === "Enter") {
    if (event.target.matches("button, summary, a")) return;
    if (!event.repeat && current?.guesses.length) choose(current.guesses[0].label);
  } else if (actions[event.key]) {
    event.preventDefault();
    if (!event.repeat) actions[event.key]();
  }
});

// --- the table and the training

function showCount(labelled) {
  byId("labelled").textContent = `${labelled.toLocaleString("en")} labelled`;
  byId("share").style.width = total ? `${(100 * labelled) / total}%` : "0";
  const list = [];
  for (const name of classes) {
    if (counts[name]) list.push(make("dt", { textContent: name }), make("dd", { textContent: counts[name].toLocaleString("en") }));
  }
  byId("counts").replaceChildren(...list);
}

async function refreshStatus() {
  const found = await status(1000);
  if (found.table) {
    ({ counts } = found.table);
    total = found.table.images;
    if (!classes.length) classes = found.classes;
    byId("outof").textContent = `of ${total.toLocaleString("en")} images`;
    byId("table").textContent = `in ${found.table.path}`;
    showCount(found.table.labelled);
  }
  showTraining(found.training);
  const { reading } = found;
  const words = { reading: "The images are being read.", encoding: `The images are being compared: ${reading.done.toLocaleString("en")} of ${reading.total.toLocaleString("en")}.`, ready: "", failed: reading.message };
  const problem = found.table ? found.table.problem : "";
  advise(words[reading.state] || problem, reading.state === "failed" || Boolean(problem));
  return found;
}

const clock = (seconds) => {
  const whole = Math.round(seconds);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
};

function showTraining(found) {
  const running = found.state === "running" || found.state === "loading";
  byId("train").disabled = running;
  byId("stop").hidden = found.state !== "running";
  byId("progress").hidden = found.state === "none";
  byId("done").style.width = `${100 * (found.fraction ?? 0)}%`;
  const left = found.seconds_left === null ? "" : `, about ${clock(found.seconds_left)} left`;
  const name = found.run.split("/").pop();
  byId("where").textContent = {
    none: "",
    running: found.step ? `Epoch ${found.epoch.toFixed(1)}, step ${found.step.toLocaleString("en")}${left}` : "Starting",
    loading: `${name} is trained and is being loaded`,
    done: `Done after ${clock(found.seconds)}. ${name} answers now; next time: semisight serve ${found.run}`,
    failed: `It failed: ${found.message}`,
    stopped: `Stopped. ${found.message}`,
  }[found.state];
  byId("lines").textContent = [...found.lines, Object.entries(found.terms).map(([term, value]) => `${term} ${value}`).join("  ")].filter(Boolean).join("\n");
  const changed = training !== found.state;
  if (changed && found.state === "done" && training !== "none") startAnew();
  training = found.state;
  return running;
}

// The new run suggests others: what is queued is its elder's choice.
async function startAnew() {
  queue = [];
  await refill();
}

async function watch() {
  for (;;) {
    const found = await ask("/api/training", { patience: 1000 });
    if (!showTraining(found)) break;
    await sleep(700);
  }
  await refreshStatus();
}

byId("train").addEventListener("click", async () => {
  try {
    showTraining(await ask("/api/training", { method: "POST", json: {} }));
    watch();
  } catch (error) {
    byId("progress").hidden = false;
    byId("where").textContent = error.message;
  }
});
byId("stop").addEventListener("click", () => ask("/api/training", { method: "DELETE" }));

refill();
for (;;) {
  const found = await refreshStatus().catch((error) => advise(error.message, true));
  if (found && (found.reading.state === "ready" || found.reading.state === "failed")) break;
  await sleep(700);
}
if (training === "running" || training === "loading") watch();
