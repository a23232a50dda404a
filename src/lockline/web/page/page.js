// The page as a whole: which store, what is open, what is said aloud.

import { Evicting } from "./evicting.js";
import { count, duration, make, write } from "./format.js";
import { Lines } from "./lines.js";
import { Model, began } from "./model.js";
import { Opened, happened } from "./opened.js";
import { Stream } from "./stream.js";

const $ = (id) => document.getElementById(id);
const THEMES = ["system", "dark", "light"];
const SAY_EVERY = 3000;

const page = { about: null, store: 0, model: new Model(), stream: null, opened: new Map(), connection: "new", unsaid: [], saying: null };
const lines = new Lines($("lines"), toggle);

// -- what is open ---------------------------------------------------------------------------------

function toggle(row) {
  const open = page.opened.get(row);
  if (open) {
    open.close();
    page.opened.delete(row);
  } else {
    const evicting = (line, claim) => page.evicting.ask(line, claim);
    page.opened.set(row, new Opened(row, page.store, page.about.evict, evicting));
  }
}

// -- what comes in --------------------------------------------------------------------------------

function take(messages) {
  for (const message of messages) {
    const change = page.model.apply(message);
    lines.apply(page.model, change);
    for (const [row, open] of page.opened) {
      if (!row.element.isConnected) page.opened.delete(row);
      else if (change.changed.has(row.line.name) || change.renewed.has(row.line.name)) open.fetch();
    }
    const loud = change.news.filter((one) => one.what !== "took");
    if (loud.length) {
      showLately();
      for (const one of loud) sayAloud(`${one.shown ?? one.name}: ${one.who} ${one.what === "lost" ? "lost it" : "was evicted"}`);
    }
    if (change.all) showLately();
  }
  tick();
}

function tick() {
  const { model } = page;
  const now = model.now();
  lines.tick(now);
  for (const open of page.opened.values()) open.tick(now);
  summarise(now);
  showState(now);
}

function summarise(now) {
  let [held, waiting, hold, wait] = [0, 0, null, null];
  for (const line of page.model.lines.values()) {
    held += line.holders;
    waiting += line.waiting;
    for (const claim of line.hold) hold = Math.min(hold ?? began(claim), began(claim));
    for (const claim of line.wait) wait = Math.min(wait ?? began(claim), began(claim));
  }
  write($("sum-held"), held.toLocaleString("en"));
  write($("sum-waiting"), waiting.toLocaleString("en"));
  write($("sum-hold"), hold === null ? "–" : duration(now - hold));
  write($("sum-wait"), wait === null ? "–" : duration(now - wait));
  write($("sum-lost"), String(page.model.lately.length));
  $("sum-lost").parentElement.classList.toggle("some", page.model.lately.length > 0);
  lines.say($("count"), page.model.status.total ?? 0);
  const { status } = page.model;
  const seen = status.state === "live" || (status.state === "silent" && status.reached);
  const none = page.model.version !== 0 && seen && lines.rows.size === 0;
  $("empty").hidden = !none && !(lines.sought && lines.shown().length === 0);
  write($("empty"), none ? "Nothing is held and nobody waits." : `No line matches “${$("find").value}”.`);
  document.title = waiting ? `${waiting.toLocaleString("en")} waiting · Lockline` : "Lockline";
}

function showState(now) {
  const { status } = page.model;
  const silent = status.state === "silent";
  const quiet = (performance.now() - page.model.heard) / 1000;
  let [state, text] = ["new", "connecting"];
  if (page.connection === "stranger") [state, text] = ["lost", "signed out"];
  else if (page.connection === "lost" || (page.connection === "live" && quiet > 5)) [state, text] = ["lost", `no news for ${duration(quiet)}`];
  else if (silent) [state, text] = ["lost", `store silent for ${duration(now - status.since)}`];
  else if (status.state === "live") [state, text] = ["live", page.connection === "asking" ? "every few seconds" : "live"];
  const changed = $("state").dataset.state !== state;
  $("state").dataset.state = state;
  write($("state").lastElementChild, text);
  document.body.classList.toggle("stale", state === "lost");
  const trouble = page.connection === "stranger" ? "This server was started again: open the address that it has printed now."
    : silent && !status.reached ? `The store has not answered yet: ${status.problem}. What is held there is not known.`
    : silent ? `The store does not answer: ${status.problem}. What stands here is what was seen before.`
    : state === "lost" ? "The server of this page does not answer. What stands here is what was seen before."
    : status.unreadable ? `${count(status.unreadable, "name")} of this store cannot be read and left out here; “lockline show” says why.` : "";
  $("trouble").hidden = !trouble;
  write($("trouble"), trouble);
  if (changed && state === "lost") sayAloud(trouble);
  if (changed && state === "live" && page.wasLost) sayAloud("The store answers again.");
  page.wasLost = state === "lost";
}

function showLately() {
  const { lately } = page.model;
  $("lately").hidden = !lately.length;
  write($("lately").firstElementChild, `${count(lately.length, "lease")} lost or evicted lately`);
  $("lately-list").replaceChildren(...lately.map((one) => {
    const item = happened(one);
    item.children[1].after(make("span", { class: "name" }, one.shown ?? one.name));
    return item;
  }).reverse());
}

// For those who listen: what matters, together, and not more than they can hear.
function sayAloud(text) {
  page.unsaid.push(text);
  page.saying ??= setTimeout(() => {
    const said = page.unsaid.length > 3 ? `${page.unsaid.length} leases were lost or evicted` : page.unsaid.join(". ");
    write($("live"), said);
    page.unsaid = [];
    page.saying = null;
  }, page.unsaid.length > 1 ? SAY_EVERY : 100);
}

// -- which store ----------------------------------------------------------------------------------

function choose(store) {
  page.stream?.close();
  page.store = store;
  page.model = new Model();
  page.opened.clear();
  page.connection = "new";
  lines.clear();
  lines.model = page.model;
  for (const tab of $("stores").children) {
    const chosen = Number(tab.dataset.store) === store;
    if (tab.role === "tab") {
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
  }
  const connection = (state) => {
    page.connection = state;
    if (state !== "live") showState(page.model.now());
  };
  page.stream = new Stream(store, () => page.model.version, take, connection);
  tick();
}

function showStores(stores) {
  const several = stores.length > 1;
  if (!several) $("stores").removeAttribute("role");
  $("stores").replaceChildren(...stores.map(({ title }, at) => {
    if (!several) return make("span", { class: "only", "data-store": "0" }, title);
    const tab = make("button", { type: "button", role: "tab", "aria-controls": "main", "data-store": String(at) }, title);
    tab.addEventListener("click", () => choose(at));
    return tab;
  }));
  $("stores").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !several) return;
    choose((page.store + step + stores.length) % stores.length);
    $("stores").children[page.store].focus();
  });
}

// -- what a person does ---------------------------------------------------------------------------

$("find").addEventListener("input", () => {
  lines.filter($("find").value.trim().toLowerCase());
  tick();
});
document.querySelector(".tools").addEventListener("submit", (event) => event.preventDefault());
$("order").addEventListener("change", () => {
  lines.order = $("order").value;
  lines.touched = -Infinity;
  lines.arrange();
});
document.addEventListener("keydown", (event) => {
  if ($("evict").open || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest?.("input, textarea, select");
  if (event.key === "Escape") {
    const row = document.activeElement?.closest?.(".line")?.row;
    if (row && page.opened.has(row)) {
      toggle(row);
      row.button.focus();
    } else if (typing === $("find")) {
      $("find").value = "";
      lines.filter("");
      tick();
    }
  } else if (typing) {
    if (typing === $("find") && (event.key === "ArrowDown" || event.key === "Enter")) {
      event.preventDefault(); // or the line that it goes to is opened, or closed, by the same key
      lines.step(1);
    }
  } else if (event.key === "/") {
    event.preventDefault();
    $("find").focus();
  } else if (event.key === "j" || event.key === "k") {
    lines.step(event.key === "j" ? 1 : -1);
  }
});

function wear(theme) {
  document.documentElement.dataset.theme = theme;
  write($("theme"), `Theme: ${theme}`);
}
$("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("lockline.theme", next);
  wear(next);
});
wear(THEMES.includes(localStorage.getItem("lockline.theme")) ? localStorage.getItem("lockline.theme") : "system");

// -- begin ----------------------------------------------------------------------------------------

const answer = await fetch("api/about");
if (answer.ok) {
  page.about = await answer.json();
  page.evicting = new Evicting(page.about, () => page.store);
  write($("scope"), page.about.evict ? "Holders can be evicted from here; each eviction is written down." : "This page only shows. Nothing can be changed from here.");
  showStores(page.about.stores);
  choose(0);
  setInterval(tick, 1000);
} else {
  page.connection = "stranger";
  showState(0);
}
