// Looks at a page: what is cut, lies on something else, or cannot be read; at most a dozen, in words.
// Leaves are what has text of its own and is seen. A region that scrolls may be wider inside than the screen.
const faults = [];
const root = document.documentElement;
if (root.scrollWidth > innerWidth) faults.push(`the page is ${root.scrollWidth} wide on ${innerWidth}`);
// [red, green, blue, alpha], 0 to 255, and alpha from 0 to 1.
const channels = (text) => {
  const found = text.match(/[\d.]+(e-?\d+)?/g).map(Number);
  const [r, g, b, alpha = 1] = found;
  return text.startsWith("color(") ? [255 * r, 255 * g, 255 * b, alpha] : [r, g, b, alpha];
};
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (node) => {
  const over = []; // what is see-through, from the top
  for (let at = node; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    over.push(colour);
    if (colour[3] === 1) break;
  }
  return over.reduceRight((below, [r, g, b, alpha]) => [r, g, b].map((v, k) => v * alpha + below[k] * (1 - alpha)), [255, 255, 255]);
};
const leaves = [];
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].filter((each) => each.nodeType === 3 && each.data.trim());
  if (!own.length || !node.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
  if (node.closest("svg, option, .skip, h1, noscript, details:not([open]) > :not(summary)")) continue;
  const range = document.createRange();
  range.selectNodeContents(own[0]);
  const box = range.getBoundingClientRect();
  if (!box.width || !box.height) continue;
  const style = getComputedStyle(node);
  const name = `${node.tagName.toLowerCase()}.${node.className || node.parentElement.className} "${own[0].data.trim().slice(0, 40)}"`;
  const [one, two] = [light(channels(style.color)), light(behind(node))];
  const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  if (ratio < (isLarge ? 3 : 4.5) && !node.closest(":disabled")) faults.push(`${name}: contrast ${ratio.toFixed(2)}`);
  if (node.closest(".scroll")) continue;
  if (box.left < -1 || box.right > innerWidth + 1) {
    if (style.textOverflow !== "ellipsis") faults.push(`${name}: cut at ${box.left.toFixed()} to ${box.right.toFixed()} of ${innerWidth}`);
  }
  const frame = node.closest(".card, .panel, .stat");
  if (frame && style.overflow !== "hidden" && !node.closest(".gantt, .u-wrap")) {
    const edge = frame.getBoundingClientRect().right - parseFloat(getComputedStyle(frame).paddingRight);
    if (box.right > edge + 1) faults.push(`${name}: sticks out of its frame by ${(box.right - edge).toFixed()}`);
  }
  if (style.overflow === "hidden" && node.scrollWidth > node.clientWidth + 1 && !node.closest("[title]") && !node.matches(".told, .meter *"))
    faults.push(`${name}: cut off`);
  if (!node.closest(".arrow, .ticks, nav, header.top, .u-wrap")) leaves.push([name, box, node]);
}
for (let a = 0; a < leaves.length; a++)
  for (let b = a + 1; b < leaves.length; b++) {
    const [one, two] = [leaves[a][1], leaves[b][1]];
    const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
    const high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
    const clipped = [leaves[a][2], leaves[b][2]].some((node) => getComputedStyle(node).overflow === "hidden");
    if (wide > 2 && high > 4 && !clipped && !leaves[a][2].contains(leaves[b][2]) && !leaves[b][2].contains(leaves[a][2]))
      faults.push(`${leaves[a][0]} lies on ${leaves[b][0]}`);
  }
return faults.slice(0, 12);
