// A member's news, kept up to date; another one is asked when it goes away.

const SILENT_MS = 7000; // a member says every two seconds that it is there
const RETRY_MS = 700;
const KEY = "mdl-token";

export function takeToken() {
	const given = new URLSearchParams(location.hash.slice(1)).get("token");
	if (given) {
		localStorage.setItem(KEY, given);
		history.replaceState(null, "", location.pathname + location.search);
	}
	return localStorage.getItem(KEY) || "";
}

export function merge(before, patch) {
	if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
	const after = before && typeof before === "object" && !Array.isArray(before) ? { ...before } : {};
	for (const [name, value] of Object.entries(patch)) {
		if (value === null) delete after[name];
		else after[name] = merge(after[name], value);
	}
	return after;
}

export class Feed {
	constructor(token, onNews) {
		this.token = token;
		this.onNews = onNews;
		this.now = null;
		this.state = "connecting";
		this.base = "";
		this.bases = [""];
		this.at = 0;
		this.watch = setInterval(() => this.check(), 1000);
		this.open();
	}

	url(path, fields = []) {
		const query = new URLSearchParams(fields);
		if (this.token) query.set("token", this.token);
		return `${this.base}${path}?${query}`;
	}

	async get(path, fields) {
		const answer = await fetch(this.url(path, fields), { headers: { accept: "application/json" } });
		const told = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
		if (!answer.ok) throw new Error(told.error || `HTTP ${answer.status}`);
		return told;
	}

	open() {
		this.heard = Date.now();
		const source = (this.source = new EventSource(this.url("/api/v1/events")));
		const hear = (name, take) =>
			source.addEventListener(name, (event) => {
				if (source !== this.source) return;
				this.heard = Date.now();
				take(JSON.parse(event.data));
				this.tell("live");
			});
		hear("snapshot", (told) => this.take(told));
		hear("change", (told) => this.take(merge(this.now, told)));
		hear("alive", () => {});
		source.onerror = () => source === this.source && this.lost();
	}

	take(snapshot) {
		this.now = snapshot;
		// This member first, then those that it knows; one that left the list may still be there after all.
		this.bases = [...new Set(["", ...(this.base ? [this.base] : []), ...snapshot.mesh.pages])].slice(0, 64);
	}

	check() {
		if (Date.now() - this.heard > SILENT_MS && !this.waiting) this.lost();
	}

	lost() {
		this.source.close();
		this.source = null;
		this.tell("lost");
		clearTimeout(this.waiting);
		this.waiting = setTimeout(() => {
			this.waiting = null;
			const here = this.bases.indexOf(this.base);
			this.base = this.bases[(here + 1) % this.bases.length];
			this.open();
		}, RETRY_MS);
	}

	tell(state) {
		this.state = state;
		this.onNews();
	}
}
