// The views of what is told right now: who is there, the open round, the cloud, and how another device joins.
import { bytes, fixed, h, known, percent, plural, seconds, told, whole } from "./dom.js";
import { FACTS } from "./facts.js";
import { gantt, hopTable } from "./gantt.js";

// A shape beside each colour: a state is told apart without seeing colours.
const MARKS = { silent: "✕", refused: "⊘", revoked: "⊗", quarantined: "⊟", paused: "‖", left: "↩", found: "○", training: "▲", receiving: "↓", sent: "↑", staged: "✓", holding: "●", waiting: "◌" };
const FORMS = { nats: (value) => fixed(value, 3), bytes: (value) => bytes(value, 2), celsius: (value) => `${whole(value)} °C`, rate: (value) => `${bytes(value * 1e6, 2)}/s` };
const TROUBLE = ["refused", "revoked", "quarantined", "silent", "paused"];

export function bar(share, label, text, low) {
	return h(
		"div",
		{ class: "meter" },
		h("span", {}, label),
		h("div", { class: "track", role: "meter", "aria-label": label, "aria-valuenow": Math.round(share * 100), "aria-valuemin": 0, "aria-valuemax": 100 }, h("i", { class: low ? "low" : "", style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } })),
		h("span", { class: "value" }, text),
	);
}

export const empty = (title, text) => h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text));
export const stat = (label, value, note, kind = "") => h("div", { class: `stat ${kind}`, key: label }, h("span", {}, label), h("strong", {}, value), note ? h("small", {}, note) : null);
export const stats = (...kids) => h("div", { class: "stats", key: "stats" }, kids);
export const panel = (title, ...kids) => h("section", { class: "panel", key: title }, h("h2", {}, title), kids);

export function meshView({ now }) {
	const { mesh, round, learning } = now;
	const devices = Object.entries(mesh.devices);
	const trainers = devices.filter(([, device]) => device.role === "trainer" && device.state !== "revoked");
	const troubled = devices.filter(([, device]) => TROUBLE.includes(device.state) && device.state !== "revoked");
	const points = Object.values(learning.rounds);
	const last = points.at(-1);
	if (!devices.length) return empty("No devices are here now", mesh.told || "nobody was heard yet");
	const order = ([a, one], [b, two]) => two.leads - one.leads || TROUBLE.includes(two.state) - TROUBLE.includes(one.state) || a.localeCompare(b, undefined, { numeric: true });
	const size = devices.length > 24 ? " small" : "";
	return [
		stats(
			stat("devices", `${whole(trainers.filter(([, device]) => !TROUBLE.includes(device.state) && device.state !== "left").length)} / ${whole(trainers.length)}`, troubled.length ? `${plural(troubled.length, "needs", "need")} a look` : "all take part", troubled.length ? "warn" : ""),
			stat("leads", mesh.agent || "nobody", mesh.policy ? `policy ${mesh.policy}` : ""),
			stat("round", round ? `${whole(round.number)}${round.goal ? ` / ${whole(round.goal)}` : ""}` : "–", last ? `the last took ${seconds(last.seconds.total ?? 0)}` : ""),
			stat(learning.measure, told(last?.score, (value) => (learning.targets === "numbers" ? fixed(value, 3) : percent(value, 1))), last && known(last.loss) ? `loss ${fixed(last.loss, 3)}` : ""),
		),
		mesh.cuts.length ? h("p", { class: "notice", key: "cuts" }, mesh.cuts.join("; ")) : null,
		h("ul", { class: `devices${size}`, key: "devices", "aria-label": "devices" }, devices.sort(order).map(([name, device]) => card(name, device))),
	];
}

function card(name, device) {
	const facts = [
		...FACTS.map(([field, label, form]) => (known(device[field]) ? [label, FORMS[form](device[field])] : null)),
		device.took_part < device.of_rounds ? ["gave", `${device.took_part} of ${device.of_rounds}`] : null,
		device.behind ? ["behind", device.behind] : null,
	].filter(Boolean);
	const power = known(device.battery_percent)
		? bar(device.battery_percent / 100, device.charging ? "charging" : "battery", percent(device.battery_percent / 100), device.battery_percent < 20 && !device.charging)
		: known(device.cpu_percent) ? h("div", { class: "meter" }, h("span", {}, "power"), h("span", { class: "value wide" }, "no battery")) : null;
	const doing = device.doing + (device.silent_s ? ` for ${whole(device.silent_s)} s` : "");
	return h(
		"li",
		{ class: `card ${device.state}`, key: name },
		h("header", {}, h("h3", { title: name }, name), device.leads ? h("span", { class: "tag lead" }, "leads") : device.role === "agent" ? h("span", { class: "tag" }, "agent") : null, device.in_use ? h("span", { class: "tag" }, "in use") : null),
		h("p", { class: "state", title: doing }, h("i", { class: "mark", "aria-hidden": "true" }, MARKS[device.state] || "•"), " ", doing),
		known(device.arrived) ? bar(device.arrived, `from ${device.arrives_from}`, percent(device.arrived)) : null,
		power,
		known(device.cpu_percent) ? bar(device.cpu_percent / 100, "cpu", percent(device.cpu_percent / 100)) : null,
		facts.length ? h("dl", {}, facts.map(([label, value]) => h("div", { key: label }, h("dt", {}, label), h("dd", {}, value)))) : null,
	);
}

const planned = ({ plan, bound_s }) => h("p", { class: "notice", key: "plan" }, `In segments: ${plan}`, known(bound_s) ? `; the links allow ${seconds(bound_s)} at best` : "");

export function roundView({ now }) {
	const { round, mesh } = now;
	if (!round) return empty("No round yet", mesh.told);
	const { chart, before } = round;
	const exchange = chart?.exchange;
	return [
		stats(
			stat("round", `${whole(round.number)}${round.goal ? ` / ${whole(round.goal)}` : ""}`, round.is_open ? "open" : "closed"),
			stat("now", round.phase, mesh.agent ? `${mesh.agent} decides by ${mesh.policy}` : "", "wide"),
			stat("since its opening", chart ? seconds(chart.end_s) : "–", chart?.makespan_s ? `one holder after ${seconds(chart.makespan_s)}` : ""),
		),
		exchange ? planned(exchange) : null,
		chart ? panel(round.is_open ? "As it happens" : "The last round", gantt(chart, { label: `round ${round.number}` })) : empty("Nothing is ordered yet", round.phase),
		exchange ? panel("Segments of each device", h("ul", { class: "owns" }, Object.entries(exchange.owns).map(([name, count]) => h("li", { key: name }, bar(count / Math.max(1, ...Object.values(exchange.owns)), name, plural(count, "segment", "segments")))))) : null,
		before ? panel("The round before", h("p", { class: "quiet" }, before.title), gantt(before), before.exchange ? planned(before.exchange) : h("details", {}, h("summary", {}, "each of its hops, and why"), hopTable(before))) : null,
		chart && Object.keys(chart.hops).length ? panel("Each hop, and why", h("p", { class: "quiet" }, chart.title), hopTable(chart)) : null,
	];
}

export function cloudView({ now }) {
	const cloud = now.cloud;
	if (!cloud) return empty("No cloud is known here", ["A cloud's own page shows its cycles (", h("code", {}, "mdl cloud --web"), "), and that of ", h("code", {}, "mdl up --cloud --web"), "."]);
	const cycles = Object.entries(cloud.cycles).reverse();
	if (!cycles.length) return empty("Nothing is taught yet", "It learns from its own data first.");
	return [
		stats(stat("version", whole(cloud.version), cloud.version > 1 ? "taught by the mesh" : "from its own data"), stat("cycles", whole(Math.max(0, cloud.version - 1))), stat("last cycle", seconds(cycles[0][1].seconds))),
		h("p", { class: "quiet", key: "what" }, "Devices of a group taught each other, through the cloud. Beside each device stands how often its model was right in the cloud's test."),
		...cycles.slice(0, 40).map(([version, cycle]) =>
			panel(
				`Version ${version}`,
				h("p", { class: "quiet" }, `${seconds(cycle.seconds)}${cycle.left_out.length ? `; did not teach: ${cycle.left_out.join(", ")}` : ""}`),
				Object.keys(cycle.groups).length
					? Object.entries(cycle.groups).map(([group, names]) => h("div", { class: "group", key: group }, h("h3", {}, group === "-1" ? "in no group" : `group ${group}`), h("ul", {}, names.map((name) => h("li", { class: "tag", key: name }, name, known(cycle.scores[name]) ? ` ${percent(cycle.scores[name], 1)}` : "")))))
					: h("p", { class: "quiet" }, "from the cloud's own data; nobody taught it yet"),
			),
		),
	];
}

export function joinView({ join, ask, hide, now }) {
	const intro = h("p", {}, `The join code lets a device into the mesh “${now.mesh.name}”: anybody that sees it can join and read. It stays on this screen for a minute.`);
	if (!join || join.error)
		return panel("Let another device join", intro, join ? h("p", { class: "notice warn", role: "alert" }, join.error) : null, h("p", {}, h("button", { class: "primary", onclick: ask }, "Show the join code")));
	const size = join.qr.length;
	const dark = join.qr.flatMap((row, y) => [...row].map((dot, x) => (dot === "1" ? `M${x} ${y}h1v1h-1z` : ""))).join("");
	return panel(
		"Let another device join",
		intro,
		h("div", { class: "code" }, h("svg", { viewBox: `-4 -4 ${size + 8} ${size + 8}`, role: "img", "aria-label": "the join code as a QR code" }, h("rect", { x: -4, y: -4, width: size + 8, height: size + 8, fill: "#fff" }), h("path", { d: dark, fill: "#000" })), h("div", {}, h("p", { class: "quiet" }, "On the other device, then type or paste the code:"), h("p", {}, h("code", {}, join.command)), h("p", {}, h("code", { class: "big" }, join.code)), h("button", { onclick: hide }, "Hide it"))),
	);
}
