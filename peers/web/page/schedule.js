// An earlier round played again, also with other devices or another policy.
import { h, known, number, percent, seconds, whole } from "./dom.js";
import { gantt, hopTable } from "./gantt.js";
import { empty, panel } from "./views.js";

const PLAY_MS = 8000; // a round, however long it was

export class Schedule {
	constructor(feed, redraw) {
		Object.assign(this, { feed, redraw, number: null, told: null, until: null, playing: null, policy: "", set: {}, outcome: null, error: "" });
	}

	async choose(number) {
		Object.assign(this, { number, told: null, until: null, playing: null, set: {}, outcome: null, error: "" });
		this.redraw();
		try {
			const told = await this.feed.get(`/api/v1/rounds/${number}`);
			if (this.number === number) this.told = told;
		} catch (error) {
			this.error = error.message;
		}
		this.redraw();
	}

	play() {
		if (this.playing) {
			this.playing = null;
			return this.redraw();
		}
		const { start_s, end_s } = this.told.chart;
		if (this.until === null || this.until >= end_s) this.until = start_s;
		const mine = (this.playing = {});
		let before = performance.now();
		const step = (at) => {
			if (this.playing !== mine) return;
			this.until = Math.min(end_s, this.until + ((at - before) * (end_s - start_s)) / PLAY_MS);
			before = at;
			if (this.until >= end_s) this.playing = this.until = null;
			else requestAnimationFrame(step);
			this.redraw();
		};
		requestAnimationFrame(step);
	}

	change(name, field, value) {
		this.set[`${name}.${field}`] = value;
		this.ask();
	}

	ask() {
		clearTimeout(this.asking);
		this.redraw();
		this.asking = setTimeout(async () => {
			const mine = (this.wanted = {});
			const fields = [["policy", this.policy], ...Object.entries(this.set).map(([name, value]) => ["set", `${name}=${value}`])];
			try {
				const outcome = await this.feed.get(`/api/v1/rounds/${this.number}/what-if`, fields);
				if (this.wanted === mine) Object.assign(this, { outcome, error: "" });
			} catch (error) {
				if (this.wanted === mine) this.error = error.message;
			}
			this.redraw();
		}, 250);
	}

	view({ now }) {
		const rounds = now.schedule.rounds;
		if (!rounds.length) return empty("No round to play again yet", "Each round that this member saw from beginning to end appears here.");
		if (this.number === null || !rounds.includes(this.number)) this.choose(rounds.at(-1));
		if (!this.policy) this.policy = now.schedule.policies.find((name) => name === now.mesh.policy) || now.schedule.policies[0] || "";
		const at = Math.max(0, rounds.indexOf(this.number));
		const chooser = h(
			"div",
			{ class: "controls", key: "controls" },
			h("button", { onclick: () => this.choose(rounds[Math.max(0, at - 1)]), disabled: at === 0, "aria-label": "the round before" }, "‹"),
			h("label", {}, h("span", {}, `round ${whole(this.number)}`), h("input", { type: "range", min: 0, max: rounds.length - 1, value: String(at), "aria-label": "round", "aria-valuetext": `round ${this.number}`, oninput: (event) => this.choose(rounds[event.target.value]) })),
			h("button", { onclick: () => this.choose(rounds[Math.min(rounds.length - 1, at + 1)]), disabled: at === rounds.length - 1, "aria-label": "the next round" }, "›"),
			h("button", { class: "primary", onclick: () => this.play(), disabled: !this.told }, this.playing ? "Pause" : "Play"),
		);
		const error = this.error ? h("p", { class: "notice warn", role: "alert", key: "error" }, this.error) : null;
		if (!this.told) return [chooser, error || h("p", { class: "quiet", key: "wait" }, "loading …")];
		const { chart } = this.told;
		const scrub = h("label", { class: "scrub" }, h("span", {}, this.until === null ? "the whole round" : `after ${seconds(this.until)}`), h("input", { type: "range", min: chart.start_s, max: chart.end_s, step: "any", value: String(this.until ?? chart.end_s), "aria-label": "moment of the round", oninput: (event) => { this.playing = null; this.until = Number(event.target.value); this.redraw(); } }));
		return [
			chooser,
			panel(`Round ${this.number}, as it was`, gantt(chart, { until: this.until, label: `round ${this.number}` }), scrub),
			this.whatIf(now, error),
			Object.keys(chart.hops).length ? panel("Each hop, and why", hopTable(chart, this.until)) : null,
			this.told.delays.length ? panel("Waits, and why", h("ul", { class: "plain" }, this.told.delays.slice(0, 12).map((each, key) => h("li", { key }, h("b", {}, each.device), ` was free for ${seconds(each.waited_s)} before its hop with `, h("b", {}, each.partner), `: ${each.why}`)))) : null,
		];
	}

	whatIf(now, error) {
		const devices = this.told.devices.slice(0, 64);
		const policies = h("label", { class: "field" }, h("span", {}, "policy"), h("select", { onchange: (event) => { this.policy = event.target.value; this.ask(); } }, now.schedule.policies.map((name) => h("option", { key: name, value: name, selected: name === this.policy }, name))));
		const rows = devices.map((device) => this.row(device));
		const changed = Object.keys(this.set).length;
		const { before, after, estimates } = this.outcome || {};
		const gain = before?.makespan_s && after?.makespan_s ? after.makespan_s / before.makespan_s - 1 : null;
		return panel(
			"What if",
			h("div", { class: "controls" }, policies, h("button", { onclick: () => { this.set = {}; this.outcome = null; this.redraw(); }, disabled: !changed && !this.outcome }, "As it was"), h("button", { onclick: () => this.ask() }, "Play with these")),
			error,
			h("details", { key: "devices" }, h("summary", {}, changed ? `devices (${whole(changed)} changed)` : "devices: battery, link, busy"), h("div", { class: "knobs" }, rows)),
			before
				? h(
						"div",
						{ key: "outcome" },
						h("p", { class: "result", role: "status" }, `${this.outcome.policy}: one holder after `, h("b", {}, seconds(after.makespan_s ?? after.end_s)), changed && gain !== null ? ` instead of ${seconds(before.makespan_s)} (${gain >= 0 ? "+" : "−"}${percent(Math.abs(gain), 1)})` : ""),
						gantt(after, { label: `what ${this.outcome.policy} would do` }),
						changed ? h("details", { key: "before" }, h("summary", {}, "the same policy without the changes"), gantt(before)) : null,
						estimates.length ? h("details", { key: "estimates" }, h("summary", {}, "assumptions"), h("ul", { class: "plain" }, estimates.map((text, key) => h("li", { key }, text)))) : null,
					)
				: null,
		);
	}

	row(device) {
		const name = device.device;
		const knob = (field, label, min, max, value, show, made = (x) => x) =>
			h("label", { class: "knob" }, h("span", {}, label), h("input", { type: "range", min, max, step: "any", value: String(value), "aria-label": `${label} of ${name}`, "aria-valuetext": show(value), oninput: (event) => this.change(name, field, made(Number(event.target.value))) }), h("output", {}, show(value)));
		const set = (field, usual) => this.set[`${name}.${field}`] ?? usual;
		// Links are chosen on a scale of factors: from a hundredth of a MB/s to a hundred.
		const link = Number(set("link", device.link_mb_s ?? 1));
		const busy = Number(String(set("busy", "0-0")).split("-")[1] || 0);
		return h(
			"fieldset",
			{ key: name },
			h("legend", {}, name),
			knob("battery", "battery", 0, 100, Number(set("battery", device.battery_percent ?? 100)), (value) => (known(set("battery", device.battery_percent)) ? percent(value / 100) : "none"), fixed5),
			knob("link", "link", -2, Math.max(2, Math.ceil(Math.log10(device.link_mb_s || 1))), Math.log10(link), (value) => (known(set("link", device.link_mb_s)) ? `${number(10 ** value, 2)} MB/s` : "unknown"), (value) => fixed5(10 ** value)),
			knob("busy", "busy until", 0, Math.max(10, Math.ceil(this.told.chart.end_s * 2)), busy, (value) => (value > 0.05 ? seconds(value) : "never"), (value) => (value > 0.05 ? `0-${fixed5(value)}` : "none")),
		);
	}
}

const fixed5 = (value) => value.toFixed(5).replace(/\.?0+$/, "");

