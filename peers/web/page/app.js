// The page: one feed, six views. Nothing is sent but to members of the mesh.
import { draw, h, whole } from "./dom.js";
import { Feed, takeToken } from "./feed.js";
import { closeCharts, drawCharts, learningView } from "./learning.js";
import { Schedule } from "./schedule.js";
import { cloudView, empty, joinView, meshView, roundView } from "./views.js";

const VIEWS = [
	["", "Mesh", meshView],
	["round", "Round", roundView],
	["learning", "Learning", learningView],
	["schedule", "Schedule", (state) => schedule.view(state)],
	["cloud", "Cloud", cloudView],
	["join", "Join", joinView],
];
const SHOWN_MS = 60000; // a join code on a screen that somebody walks past
const RELOAD_MS = 5000;
const main = document.querySelector("main");
const here = () => VIEWS.find(([path]) => path === location.pathname.slice(1)) || VIEWS[0];
const state = { now: null, join: null };
const started = Date.now();
let due = false;
// Those that this page may ask: its policy names them (peers/web/app.py).
const known = new Set(document.querySelector("meta[name=pages]").content.split(" ").filter(Boolean));

export const feed = new Feed(takeToken(), () => {
	state.now = feed.now;
	follow();
	redraw();
});
const schedule = new Schedule(feed, redraw);

state.ask = async () => {
	try {
		if (feed.base) throw new Error("This page follows another device now. The join code is on the device itself: mdl mesh show NAME.");
		state.join = await feed.get("/api/v1/join");
		setTimeout(state.hide, SHOWN_MS);
	} catch (error) {
		state.join = { error: error.message };
	}
	redraw();
};
state.redraw = redraw;
state.hide = () => {
	state.join = null;
	redraw();
};

// A member that came later may be asked only after the page was loaded anew.
function follow() {
	if (!state.now || feed.base) return;
	document.documentElement.dataset.pages = known.size;
	const isNew = state.now.mesh.pages.some((page) => !known.has(page));
	const isSet = here()[0] === "schedule" && Object.keys(schedule.set).length;
	const isUsed = state.join || schedule.playing || isSet || /INPUT|SELECT|BUTTON|SUMMARY/.test(document.activeElement?.tagName);
	if (isNew && !isUsed && Date.now() - started > RELOAD_MS) location.reload();
}

function redraw() {
	if (due) return;
	due = true;
	requestAnimationFrame(() => {
		due = false;
		paint();
	});
}

function paint() {
	const { now } = state;
	const [path, title, view] = here();
	const chip = document.querySelector("#feed");
	const [word, kind] = feed.state === "live" ? [feed.base ? `following ${new URL(feed.base).host}` : "live", feed.base ? "other" : "live"] : [feed.now ? "looking for a member" : "connecting", "lost"];
	if (chip.textContent !== word) chip.textContent = word;
	chip.className = `chip ${kind}`;
	const head = document.querySelector("#mesh");
	draw(head, [h("strong", {}, now ? now.mesh.name : "mdl"), now ? h("span", { class: "told" }, now.mesh.told) : null]);
	document.title = now ? `${title} · ${now.mesh.name}${now.round ? ` · round ${whole(now.round.number)}` : ""}` : "mdl";
	for (const link of document.querySelectorAll("nav a")) {
		if (link.getAttribute("href") === `/${path}`) link.setAttribute("aria-current", "page");
		else link.removeAttribute("aria-current");
	}
	if (path !== "learning") closeCharts();
	main.dataset.view = path || "mesh";
	draw(main, h("div", { key: path, class: "view" }, h("h1", {}, title), now ? view(state) : empty("Connecting", "waiting for the first answer of this member")));
	if (path === "learning" && now) drawCharts();
	if (now) document.documentElement.dataset.ready = path || "mesh";
}

function go(path) {
	if (path !== location.pathname) history.pushState(null, "", path);
	state.join = null;
	paint();
	main.focus({ preventScroll: true });
	scrollTo(0, 0);
}

draw(
	document.querySelector("nav"),
	VIEWS.map(([path, title], at) => h("a", { href: `/${path}`, key: path, title: `${title} (key ${at + 1})`, onclick: (event) => { if (!event.metaKey && !event.ctrlKey && !event.shiftKey) { event.preventDefault(); go(`/${path}`); } } }, h("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, h("path", { d: ICONS()[at] })), h("span", {}, title))),
);

function ICONS() {
	return [
		"M12 3a2.5 2.5 0 1 1 0 5 2.5 2.5 0 0 1 0-5ZM5 15a2.5 2.5 0 1 1 0 5 2.5 2.5 0 0 1 0-5Zm14 0a2.5 2.5 0 1 1 0 5 2.5 2.5 0 0 1 0-5ZM11 8.500 6.500 15M13 8.500l4.500 6.500M8 17.500h8",
		"M4 6h9M8 12h11M5 18h8",
		"M4 4v16h16M7 15l4-5 3 3 5-7",
		"M12 4a8 8 0 1 0 8 8M12 7v5l3 2M15 4h5v5",
		"M7 18h10a4 4 0 0 0 .5-8A6 6 0 0 0 6 9.500 4.300 4.300 0 0 0 7 18Z",
		"M4 4h6v6H4zM14 4h6v6h-6zM4 14h6v6H4zM14 14h2v2h-2zM18 18h2v2h-2zM18 14h2M14 18v2",
	];
}

addEventListener("popstate", paint);
addEventListener("resize", redraw);
addEventListener("keydown", (event) => {
	const at = Number(event.key) - 1;
	if (VIEWS[at] && !event.metaKey && !event.ctrlKey && !event.altKey && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) go(`/${VIEWS[at][0]}`);
});

const theme = document.querySelector("#theme");
const themes = ["auto", "light", "dark"];
const isDark = matchMedia("(prefers-color-scheme: dark)");
let chosen = themes.indexOf(localStorage.getItem("mdl-theme"));
function dress() {
	const name = themes[chosen] || "auto";
	document.documentElement.dataset.theme = name === "auto" ? (isDark.matches ? "dark" : "light") : name;
	theme.textContent = `◐ ${name}`;
	theme.title = `colours: ${name}`;
	theme.setAttribute("aria-label", theme.title);
	redraw();
}
theme.onclick = () => {
	chosen = (Math.max(0, chosen) + 1) % themes.length;
	localStorage.setItem("mdl-theme", themes[chosen]);
	dress();
};
isDark.addEventListener("change", dress);
dress();
paint();
