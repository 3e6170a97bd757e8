// The page to try: every image is a request of its own; the server answers those that wait together.
import { advise, ask, byId, imageAddress, make, percent, sharpen, sleep, status } from "./common.js";

const AT_A_TIME = 4;
const TOP = 5;
let found = null;
const waiting = [];
let busy = 0;

function picture(address, words) {
  const image = make("img", { alt: words, src: address });
  image.addEventListener("load", () => sharpen(image));
  return make("figure", {}, image, make("figcaption", { textContent: words }));
}

function bars(labels) {
  const list = make("dl", { className: "bars" });
  labels.forEach((one, place) => {
    const range = make("u", { style: { left: percentage(one.low), width: percentage(one.high - one.low) } });
    const bar = make("div", { className: "bar", title: `${percent(one.low)} to ${percent(one.high)} for nine codes in ten` },
      make("i", { style: { width: percentage(one.probability) } }), range);
    const number = make("dd", { className: "number" }, make("b", { textContent: percent(one.probability) }),
      ` ${short(one.low)}–${short(one.high)}`);
    list.append(make("dt", { textContent: one.label, className: place ? "" : "best" }), make("dd", {}, bar), number);
  });
  return list;
}

const percentage = (share) => `${(100 * share).toFixed(2)}%`;
const short = (p) => (100 * p).toFixed(0);

function sentences(captions) {
  const list = make("ul", { className: "sentences" });
  for (const one of captions) {
    const sure = `${percent(one.probability)} per word (${short(one.low)}–${short(one.high)})`;
    list.append(make("li", {}, make("span", { textContent: one.text }), make("span", { className: "soft", textContent: `  ${sure}` })));
  }
  return list;
}

function neighbours(nearest) {
  const strip = make("div", { className: "near" });
  for (const one of nearest) {
    const image = make("img", { src: imageAddress(one.file), alt: one.file, loading: "lazy" });
    image.addEventListener("load", () => sharpen(image));
    const words = one.label || "no label";
    strip.append(make("figure", { title: one.title ?? `${one.file}, similarity ${one.similarity.toFixed(2)}` }, image,
      make("figcaption", { textContent: words })));
  }
  return strip;
}

const part = (title, content) => make("div", {}, make("h3", { textContent: title }), content);

function show(card, name, address, answer) {
  const pictures = make("div", { className: "pictures" }, picture(address, "your image"),
    picture(answer.seen, "as the model sees it"));
  if (answer.reconstruction) pictures.append(picture(answer.reconstruction, "redrawn from its code"));
  const said = make("div", { className: "said" });
  if (answer.labels.length) said.append(part("Label, and its range over codes", bars(answer.labels)));
  if (answer.captions.length) said.append(part("Caption", sentences(answer.captions)));
  if (answer.nearest.length) said.append(part("Nearest training images", neighbours(answer.nearest)));
  if (!said.children.length) said.append(make("p", { className: "soft", textContent: "This run knows no labels: it learned from images alone." }));
  card.replaceChildren(make("h2", { textContent: name }), pictures, said);
}

async function answer(file, card) {
  const address = URL.createObjectURL(file);
  try {
    if (found && file.size > found.limits.upload_bytes) throw new Error(`larger than ${Math.round(found.limits.upload_bytes / 1e6)} MB`);
    const content = await ask(`/api/predict?top=${TOP}&captions=3`, {
      method: "POST", body: file, type: "application/octet-stream", patience: 20 });
    show(card, file.name, address, content.images[0]);
  } catch (error) {
    card.replaceChildren(make("h2", { textContent: file.name }),
      make("p", { className: "error", textContent: error.message.replace(/^image: /, "") }));
    URL.revokeObjectURL(address);
  }
  card.setAttribute("aria-busy", "false");
}

async function work() {
  if (busy >= AT_A_TIME) return;
  busy++;
  while (waiting.length) await answer(...waiting.shift());
  busy--;
}

function take(files) {
  for (const file of files) {
    const card = make("article", { className: "card result" }, make("h2", { className: "pulse", textContent: `${file.name} …` }));
    card.setAttribute("aria-busy", "true");
    byId("results").prepend(card);
    waiting.push([file, card]);
    work();
  }
}

const drop = byId("drop");
byId("files").addEventListener("change", (event) => {
  take([...event.target.files]);
  event.target.value = "";
});
for (const kind of ["dragover", "dragenter"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) drop.classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  take([...event.dataTransfer.files]);
});
document.addEventListener("paste", (event) => take([...(event.clipboardData?.files ?? [])]));

byId("search").addEventListener("submit", async (event) => {
  event.preventDefault();
  const words = byId("words").value.trim();
  if (!words) return;
  const card = make("article", { className: "card result" }, make("h2", { textContent: words }));
  try {
    const { images, unknown } = await ask(`/api/search?words=${encodeURIComponent(words)}`, { patience: 20 });
    if (unknown.length) card.append(make("p", { className: "soft", textContent: `Not known, left out: ${unknown.join(", ")}` }));
    const named = images.map(({ file, log_prob }) => ({ file, label: file.split("/").pop(), title: `${file}, log p ${log_prob.toFixed(1)}` }));
    card.append(neighbours(named));
  } catch (error) {
    card.append(make("p", { className: "error", textContent: error.message }));
  }
  byId("found").replaceChildren(card);
});

for (;;) {
  try {
    found = await status(1000);
    byId("search").hidden = !found.captions;
    const { reading } = found;
    const images = { reading: "The training images are being read.", encoding: `The training images are being compared: ${reading.done.toLocaleString("en")} of ${reading.total.toLocaleString("en")}.`, failed: `Nearest images are not shown: ${reading.message}` };
    advise([found.advice, images[reading.state]].filter(Boolean).join(" "));
    if (reading.state === "ready" || reading.state === "failed") break;
  } catch (error) {
    advise(error.message, true);
  }
  await sleep(1000);
}
