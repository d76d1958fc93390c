// Problems of a page for people who do not see it well; each as a text.
const problems = [];
const named = (it) => (it.getAttribute("aria-label") || it.textContent || it.title || "").trim() !== "";
if (!document.documentElement.lang) problems.push("the page has no language");
if (document.querySelectorAll("h1").length !== 1) problems.push("there is not one heading");
if (!document.querySelector("main")) problems.push("there is no main part");
document.querySelectorAll("input:not([type=hidden]), select").forEach((it) => {
  if (!it.getAttribute("aria-label") && !(it.labels && it.labels.length)) problems.push("a field without a name: " + it.name);
});
document.querySelectorAll("a, button").forEach((it) => { if (!named(it)) problems.push("no name: " + it.outerHTML); });
document.querySelectorAll("svg[role=img]").forEach((it) => { if (!named(it)) problems.push("a picture without a text"); });
document.querySelectorAll("th").forEach((it) => { if (!it.scope) problems.push("a head of a table without a direction"); });
const ids = [...document.querySelectorAll("[id]")].map((it) => it.id);
ids.filter((id, at) => ids.indexOf(id) !== at).forEach((id) => problems.push("two of one id: " + id));

const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (color) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const over = (top, under) => {
  const part = top[3] / 255;
  return [0, 1, 2].map((i) => top[i] * part + under[i] * (1 - part)).concat(255);
};
const back = (it) => {
  const layers = [];
  for (let at = it; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((under, top) => over(top, under), rgba("Canvas"));
};
const light = (color) => {
  const [r, g, b] = color.map((part) => { const c = part / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const it = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || it.closest("script, svg, option, .hidden, .skip") || !it.checkVisibility()) continue;
  const under = back(it);
  const [one, other] = [light(over(rgba(getComputedStyle(it).color), under)), light(under)];
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (ratio < 4.5) problems.push(`contrast ${ratio.toFixed(2)}: ${it.className} ${walker.currentNode.textContent.trim().slice(0, 40)}`);
}
return problems;
