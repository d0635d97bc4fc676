// Draws trees of plain objects and changes only what differs: focus and scrolling stay.
// Whatever comes from a device ends up in text nodes and attributes, never in markup.

const SVG = new Set(["svg", "path", "rect", "line", "g", "text", "title", "circle", "polyline"]);

export function h(tag, attrs, ...kids) {
	return { tag, attrs: attrs || {}, kids: kids.flat(3).filter((kid) => kid !== null && kid !== undefined && kid !== false) };
}

export function draw(parent, kids) {
	const wanted = [kids].flat(3).filter((kid) => kid !== null && kid !== undefined && kid !== false);
	const known = new Map();
	for (const node of parent.childNodes) if (node._key !== undefined) known.set(node._key, node);
	let at = parent.firstChild;
	for (const kid of wanted) {
		const key = kid.attrs?.key;
		let node = key === undefined ? at : known.get(key);
		if (!node || !fits(node, kid)) node = make(kid);
		if (node === at) at = at.nextSibling;
		else parent.insertBefore(node, at);
		update(node, kid);
	}
	while (at) {
		const next = at.nextSibling;
		at.remove();
		at = next;
	}
}

function fits(node, kid) {
	if (typeof kid !== "object") return node.nodeType === 3;
	return node._tag === kid.tag && node._key === kid.attrs.key;
}

function make(kid) {
	if (typeof kid !== "object") return document.createTextNode(String(kid));
	const node = SVG.has(kid.tag) ? document.createElementNS("http://www.w3.org/2000/svg", kid.tag) : document.createElement(kid.tag);
	node._tag = kid.tag;
	node._key = kid.attrs.key;
	node._attrs = {};
	return node;
}

function update(node, kid) {
	if (typeof kid !== "object") {
		if (node.data !== String(kid)) node.data = String(kid);
		return;
	}
	const old = node._attrs;
	for (const name in old) if (!(name in kid.attrs)) put(node, name, null, old[name]);
	for (const [name, value] of Object.entries(kid.attrs)) if (name === "style" || old[name] !== value) put(node, name, value, old[name]);
	node._attrs = kid.attrs;
	if (!kid.attrs.own) draw(node, kid.kids);
}

function put(node, name, value, old) {
	if (name === "key" || name === "own") return;
	if (name.startsWith("on")) node[name] = value;
	else if (name === "style") {
		for (const each in old || {}) if (!value || !(each in value)) node.style.removeProperty(each);
		for (const each in value || {}) if (!old || old[each] !== value[each]) node.style.setProperty(each, value[each]);
	} else if (name === "value" || name === "checked") {
		if (node[name] !== value && document.activeElement !== node) node[name] = value;
	} else if (value === null || value === undefined || value === false) node.removeAttribute(name);
	else node.setAttribute(name, value === true ? "" : value);
}

// -- numbers, in the reader's locale

const formats = new Map();
function format(value, options) {
	const key = JSON.stringify(options);
	if (!formats.has(key)) formats.set(key, new Intl.NumberFormat(undefined, options));
	return formats.get(key).format(value);
}

export const known = (value) => value !== null && value !== undefined;
export const whole = (value) => format(value, { maximumFractionDigits: 0 });
export const number = (value, digits = 3) => format(value, { maximumSignificantDigits: digits });
export const percent = (share, digits = 0) => format(share, { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits });
export const seconds = (value) => `${format(value, { minimumFractionDigits: value < 10 ? 2 : 1, maximumFractionDigits: value < 10 ? 2 : 1 })} s`;
export const fixed = (value, digits) => format(value, { minimumFractionDigits: digits, maximumFractionDigits: digits });

export function bytes(value, digits = 3) {
	const at = value >= 1e9 ? 3 : value >= 1e6 ? 2 : value >= 1e3 ? 1 : 0;
	return `${number(value / 1000 ** at, digits)} ${["B", "kB", "MB", "GB"][at]}`;
}

export const plural = (count, one, many) => `${whole(count)} ${count === 1 ? one : many}`;

export const told = (value, show) => (known(value) ? show(value) : "–");

// head: text of each column; those in `right` hold numbers.
export function table(label, head, right, rows, kind = "") {
	const titles = head.map((text, at) => h("th", { scope: "col", class: right.includes(at) ? "num" : "" }, text));
	return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", { class: kind }, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, rows)));
}
