// Accuracy and loss by round, and where seconds and bytes go.
import { bytes, fixed, h, known, percent, plural, seconds, table, told, whole } from "./dom.js";
import { empty, panel, stat, stats } from "./views.js";

const PHASES = ["train", "aggregate", "broadcast", "apply"];
const charts = new Map();
const share = (value) => percent(value, 1);
const plain = (value) => fixed(value, 3);

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rem = () => parseFloat(css("font-size"));
let device = ""; // whose lines are drawn, too

export function closeCharts() {
	for (const each of charts.values()) each.plot.destroy();
	charts.clear();
}

export function drawCharts() {
	for (const node of document.querySelectorAll("[data-chart]")) {
		const wanted = wants.get(node.dataset.chart);
		const width = Math.max(200, Math.floor(node.clientWidth));
		let shown = charts.get(node.dataset.chart);
		if (shown && (shown.node !== node || shown.theme !== css("--text") || shown.lines !== wanted.lines.length)) {
			shown.plot.destroy();
			shown = null;
		}
		if (!shown) charts.set(node.dataset.chart, (shown = { node, theme: css("--text"), lines: wanted.lines.length, plot: make(node, wanted, width) }));
		else if (shown.data !== wanted.key) shown.plot.setData(wanted.data);
		shown.data = wanted.key;
		if (shown.plot.width !== width) shown.plot.setSize({ width, height: 16 * rem() });
	}
}

const wants = new Map();

function make(node, { data, lines, show }, width) {
	const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: `${0.8 * rem()}px ${css("--font")}` };
	const options = {
		width,
		height: 16 * rem(),
		legend: { show: false },
		cursor: { drag: { setScale: false }, points: { size: 6 } },
		scales: { x: { time: false } },
		axes: [{ ...axis, size: 2 * rem(), values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? whole(tick) : "")) }, { ...axis, size: 3.8 * rem(), values: (_, ticks) => ticks.map(show) }],
		series: [{}, ...lines.map(({ label, colour, dash, width, marks }) => ({ label, stroke: css(colour), width: width || 2, dash, points: { show: !!marks, size: 9 }, spanGaps: true, ...(marks && { paths: () => null }) }))],
	};
	return new window.uPlot(options, data, node);
}

function chart(name, label, data, lines, show, key) {
	wants.set(name, { data, lines, show, key });
	const legend = lines.map(({ label, colour, dash }) => h("span", { key: label }, h("svg", { class: "swatch", viewBox: "0 0 30 4", "aria-hidden": "true" }, h("path", { d: "M0 2h30", style: { stroke: `var(${colour})` }, "stroke-dasharray": dash?.join(" ") })), label));
	return h("figure", { class: "chart", role: "img", "aria-label": label }, h("div", { "data-chart": name, own: true }), h("figcaption", { class: "legend" }, legend));
}

export function learningView({ now, redraw }) {
	const rounds = Object.entries(now.learning.rounds);
	if (!rounds.length) return empty("No round is finished yet", now.round?.phase || now.mesh.told);
	const { alone, central, targets, measure } = now.learning;
	const score = targets === "numbers" ? plain : share;
	const x = rounds.map(([name]) => Number(name));
	const points = rounds.map(([, point]) => point);
	const last = points.at(-1);
	const changes = rounds.filter(([, point]) => point.changed);
	const names = [...new Set(points.slice(-40).flatMap((point) => [...Object.keys(point.losses), ...Object.keys(point.scores)]))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
	if (!names.includes(device)) device = "";
	const key = `${x[0]} ${x.at(-1)} ${known(last.score)} ${alone} ${central} ${device}`;
	const level = (value) => x.map(() => value);
	const accuracy = [{ label: "mesh", colour: "--blue", width: 3 }];
	const data = [x, points.map((point) => point.score ?? null)];
	const spread = points.some((point) => Object.keys(point.scores).length > 1);
	if (spread) {
		accuracy.push({ label: "best device", colour: "--green", width: 1, dash: [9, 2] }, { label: "worst device", colour: "--red", width: 1, dash: [3, 2] });
		data.push(...[Math.max, Math.min].map((pick) => points.map((point) => (Object.keys(point.scores).length ? pick(...Object.values(point.scores)) : null))));
	}
	if (known(alone)) accuracy.push({ label: "alone (median device)", colour: "--orange", dash: [7, 3, 2, 3] }) && data.push(level(alone));
	if (known(central)) accuracy.push({ label: "central (all data in one place)", colour: "--purple", dash: [1, 4] }) && data.push(level(central));
	if (changes.length) {
		// A dot where the set of devices changed: from there on other test windows are judged.
		accuracy.push({ label: "other devices from here", colour: "--text", marks: true });
		data.push(points.map((point) => (point.changed ? point.score ?? null : null)));
	}
	const losses = [{ label: "mean of the devices", colour: "--orange", width: 3 }];
	const lossData = [x, points.map((point) => point.loss ?? null)];
	if (device) {
		accuracy.push({ label: device, colour: "--text" });
		data.push(points.map((point) => point.scores[device] ?? null));
		losses.push({ label: device, colour: "--text" });
		lossData.push(points.map((point) => point.losses[device] ?? null));
	}
	const choice = h("label", { class: "field", key: "device" }, h("span", {}, "draw a device, too"), h("select", { onchange: (event) => { device = event.target.value; redraw(); } }, ["", ...names].map((name) => h("option", { key: name, value: name, selected: name === device }, name || "none"))));
	return [
		stats(
			stat(measure, told(last.score, score), beside(last)),
			stat("loss", told(last.loss, plain), `in training, ${targets === "numbers" ? "of spread 1" : "nats"}`),
			stat("devices merged", whole(last.contributors), last.lost.length ? `without ${last.lost.join(", ")}` : "nobody was lost", last.lost.some((name) => !name.includes("(later")) ? "warn" : ""),
			stat("a round", seconds(last.seconds.total ?? 0), `${bytes(last.bytes)} of model values`),
		),
		h(
			"div",
			{ class: "columns", key: "charts" },
			panel(measure[0].toUpperCase() + measure.slice(1), names.length ? choice : null, chart("accuracy", `${measure} of the mesh by round, ${told(last.score, score)} now`, data, accuracy, targets === "numbers" ? plain : (value) => percent(value), key)),
			changes.length ? panel("Devices that came and went", h("ul", {}, changes.slice(-8).map(([name, point]) => h("li", { key: name }, `from round ${name} ${point.changed}`)))) : null,
			panel("Loss", chart("loss", "training loss by round", lossData, losses, (value) => fixed(value, 2), key)),
			confusion(now.learning),
			numbers(last, now.learning),
			panel("Seconds by phase", phases(rounds)),
			panel("Each device", devices(last, names, measure, score)),
		),
	];
}

function beside(last) {
	if (last.fits.length === 1) return `RMSE ${figure(last.fits[0].rmse)}, MAE ${figure(last.fits[0].mae)}`;
	const exact = last.labelling ? `, ${percent(last.labelling.exact, 1)} all right` : "";
	return known(last.macro_f1) ? `macro F1 ${percent(last.macro_f1, 1)}${exact}` : "";
}

const cell = (value, show) => h("td", { class: "num" }, told(value, show));
const figure = (value) => String(+value.toPrecision(4));

function numbers(last, { classes }) {
	if (!last.fits.length) return null;
	const rows = last.fits.map((fit, at) => h("tr", { key: at }, h("th", { scope: "row" }, classes[at] ?? whole(at + 1)), cell(fit.rmse, figure), cell(fit.mae, figure), cell(fit.r2, plain)));
	return panel("Numbers", table("error of each number", ["number", "RMSE", "MAE", "R²"], [1, 2, 3], rows));
}

function phases(rounds) {
	const shown = rounds.slice(-40);
	const most = Math.max(...shown.map(([, point]) => point.seconds.total || 0), 1e-9);
	const columns = shown.map(([name, point]) =>
		h(
			"div",
			{ class: "column", key: name, title: `round ${name}: ${PHASES.map((phase) => `${phase} ${seconds(point.seconds[phase] || 0)}`).join(", ")}; ${plural(point.contributors, "device merged", "devices merged")}, ${bytes(point.bytes)}` },
			PHASES.map((phase) => h("i", { class: `phase ${phase}`, style: { height: `${(100 * (point.seconds[phase] || 0)) / most}%` } })),
		),
	);
	return h(
		"figure",
		{ class: "phases", role: "img", "aria-label": `seconds of the last ${shown.length} rounds by phase, at most ${seconds(most)}` },
		h("div", { class: "columns-of" }, columns),
		h("div", { class: "ends" }, h("span", {}, `round ${shown[0][0]}`), h("span", {}, `top: ${seconds(most)}`), h("span", {}, `round ${shown.at(-1)[0]}`)),
		h("figcaption", { class: "legend" }, PHASES.map((phase) => h("span", { key: phase }, h("i", { class: `phase ${phase}` }), phase))),
	);
}

// Rows are the true classes. A cell is the darker the larger its share of the row; right ones are framed, not coloured.
function confusion({ confusion, confusion_round, classes }) {
	if (!confusion.length) return null;
	const sums = confusion.map((row) => row.reduce((sum, count) => sum + count, 0));
	const names = confusion.map((_, at) => classes[at] ?? whole(at));
	const rows = confusion.map((row, truth) => {
		const found = sums[truth] ? percent(row[truth] / sums[truth]) : "–";
		const cells = row.map((count, guess) => h("td", { class: `num${guess === truth ? " hit" : ""}`, style: { "--share": `${(45 * count) / (sums[truth] || 1)}%` }, title: `${names[truth]} taken for ${names[guess]}: ${whole(count)}` }, whole(count)));
		return h("tr", { key: truth }, h("th", { scope: "row" }, names[truth]), cells, h("td", { class: "num" }, found));
	});
	const head = ["class", ...names, "right"];
	const total = sums.reduce((sum, count) => sum + count, 0);
	return panel("Confusion matrix", h("p", { class: "quiet" }, `round ${whole(confusion_round)}, ${plural(total, "test window", "test windows")}: each row a true class, each column what it was taken for`), table("confusion matrix: rows are true classes, columns what they were taken for", head, head.map((_, at) => at).slice(1), rows, "confusion"));
}

function devices(last, names, measure, score) {
	if (!names.length) return h("p", { class: "quiet" }, "not told for this round");
	const rows = names.map((name) =>
		h("tr", { key: name }, h("th", { scope: "row" }, name), cell(last.losses[name], plain), cell(last.scores[name], score)),
	);
	return table(`loss and ${measure} of each device`, ["device", "loss", "own test"], [1, 2], rows);
}
