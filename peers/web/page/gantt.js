// One round: a row for each device, arrows where hops begin.
import { fixed, h, known, seconds, table } from "./dom.js";

export const KINDS = {
	training: "trains",
	waiting: "free, waits",
	busy: "busy with other work",
	send: "sends",
	receive: "receives",
	merge: "merges",
	segments: "gives and gets segments",
	stalled: "hop stands still",
	lost: "lost",
};

export function gantt(chart, { until = null, label = "" } = {}) {
	const from = chart.start_s;
	const end = Math.max(chart.end_s, from + 1e-6);
	const x = (at) => (100 * (Math.min(Math.max(at, from), end) - from)) / (end - from);
	const names = Object.keys(chart.rows);
	const hops = Object.entries(chart.hops).filter(([, hop]) => until === null || hop.start_s <= until);
	const used = new Set();
	const rows = names.map((name) => {
		const spans = chart.rows[name].map(([kind, start, stop, partner]) => {
			const last = Math.min(stop ?? end, until ?? end);
			if (kind === "done" || last <= from || start >= last) return null;
			used.add(kind);
			const text = `${name}: ${KINDS[kind] || kind}${partner ? ` (${partner})` : ""}, ${seconds(start)} to ${stop === null ? "now" : seconds(stop)}`;
			return h("i", { class: `span ${kind}`, title: text, style: { left: `${x(start)}%`, width: `${Math.max(0.15, x(last) - x(start))}%` } });
		});
		return h("div", { class: "row", key: name }, h("b", { title: name }, name), h("div", { class: "lane" }, spans));
	});
	const count = names.length;
	const arrows = hops.map(([number, hop]) => {
		const [a, b] = [names.indexOf(hop.sender), names.indexOf(hop.receiver)];
		if (a < 0 || b < 0) return null;
		const [y, z] = [((a + 0.5) / count) * 100, ((b + 0.5) / count) * 100];
		return h(
			"i",
			{
				key: number,
				class: `arrow ${a < b ? "down" : "up"}`,
				title: `hop ${number}: ${hop.sender} → ${hop.receiver}, ${hop.outcome}: ${hop.reason}`,
				style: { left: `${x(hop.start_s)}%`, top: `${Math.min(y, z)}%`, height: `${Math.abs(y - z)}%` },
			},
			h("span", {}, number),
		);
	});
	// As many digits as tell one tick from the next.
	const digits = Math.min(4, Math.max(0, Math.ceil(1 - Math.log10((end - from) / 4))));
	const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) =>
		h("span", { style: { left: `${share * 100}%` } }, `${fixed(from + share * (end - from), digits)} s`),
	);
	return h(
		"figure",
		{ class: `gantt${count > 20 ? " dense" : ""}`, role: "img", "aria-label": `${label || chart.title}: ${count} devices, ${hops.length} hops` },
		h("div", { class: "rows" }, rows, h("div", { class: "arrows", key: "arrows" }, arrows, until === null ? null : h("i", { class: "head", key: "head", style: { left: `${x(until)}%` } }))),
		h("div", { class: "ticks", "aria-hidden": "true" }, ticks),
		h("figcaption", { class: "legend" }, Object.keys(KINDS).filter((kind) => used.has(kind)).map((kind) => h("span", { key: kind }, h("i", { class: `span ${kind}` }), KINDS[kind]))),
	);
}

export function hopTable(chart, until = null) {
	const hops = Object.entries(chart.hops).filter(([, hop]) => until === null || hop.start_s <= until);
	if (!hops.length) return null;
	const rows = hops.reverse().slice(0, 120).map(([number, hop]) =>
		h(
			"tr",
			{ key: number },
			h("td", { class: "num" }, number),
			h("td", { class: "num" }, seconds(hop.start_s)),
			h("td", {}, h("b", {}, hop.sender), " → ", h("b", {}, hop.receiver)),
			h("td", {}, h("span", { class: `tag ${hop.outcome}` }, hop.outcome), known(hop.end_s) ? ` ${seconds(hop.end_s - hop.start_s)}` : ""),
			h("td", { class: "why" }, hop.reason),
		),
	);
	return table("hops and the reason of each", ["#", "at", "hop", "outcome", "why"], [0, 1], rows, "hops");
}
