// One line in the list: its name, who holds it in front, who waits behind, in order.

import { count, duration, make, remaining, write } from "./format.js";
import { began, isLate } from "./model.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const REFILL = 300; // Milliseconds in which a bar fills up again.
const FLASH = 6000;
let rows = 0;

// The time that is left, as a bar that empties by itself and fills up with each renewal.
class Bar {
  constructor() {
    this.fill = make("i");
    this.element = make("span", { class: "ttl", "aria-hidden": "true" }, this.fill);
    this.expires = null;
    this.running = null;
  }

  show(claim, now) {
    if (this.expires === claim.expires && this.running) return;
    const part = (moment) => Math.min(1, Math.max(0, (moment - now) / claim.ttl));
    const before = this.expires === null ? part(claim.expires) : part(this.expires);
    this.expires = claim.expires;
    this.running?.cancel();
    this.running = null;
    this.fill.style.transform = `scaleX(${part(claim.expires)})`;
    const left = Math.max(0, claim.expires - now) * 1000;
    if (calm.matches || left < 1) return;
    const refill = Math.min(REFILL, left / 2);
    this.running = this.fill.animate(
      [
        { transform: `scaleX(${before})` },
        { transform: `scaleX(${part(claim.expires + -refill / 1000)})`, offset: refill / left },
        { transform: "scaleX(0)" },
      ],
      { duration: left, fill: "forwards" },
    );
  }
}

function metaText(claim) {
  return (claim.meta ?? []).map(([key, value]) => `${key} ${value}`).join(" · ");
}

export class Row {
  constructor(line, onToggle) {
    this.line = line;
    this.drawn = null;
    this.visible = false;
    this.ages = [];
    this.bars = [];
    const id = `line-${++rows}`;
    this.button = make("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": id });
    this.button.addEventListener("click", () => onToggle(this));
    this.flag = make("span", { class: "flag", hidden: true });
    this.facts = make("p", { class: "facts" });
    this.holders = make("ol", { class: "holders", "aria-label": "Holds" });
    this.waiters = make("ol", { class: "waiters", "aria-label": "Waiting, in order" });
    this.opened = make("div", { class: "opened", id, hidden: true });
    this.element = make("li", { class: "line" },
      make("div", { class: "head" }, make("h2", {}, this.button), this.facts, this.flag),
      make("div", { class: "track" }, this.holders, this.waiters),
      this.opened,
    );
    this.element.row = this;
    write(this.button, line.shown ?? line.name);
  }

  get text() {
    const line = this.line;
    return [line.shown ?? line.name, ...line.hold.map((one) => one.who), ...line.wait.map((one) => one.who)].join("\n").toLowerCase();
  }

  // Draw what changed; only the time, if nothing did.
  draw(now) {
    if (this.drawn !== this.line) this.rebuild();
    this.tick(now);
  }

  rebuild() {
    const line = this.line;
    this.drawn = line;
    this.ages = [];
    const old = new Map(this.bars.map(({ claim, bar }) => [claim.id, bar]));
    this.bars = [];
    this.holders.replaceChildren(...line.hold.map((claim) => this.holder(claim, old.get(claim.id))));
    if (line.holders > line.hold.length) this.holders.append(more(line.holders - line.hold.length, "hold"));
    if (!line.holders) this.holders.append(make("li", { class: "free" }, line.waiting ? "nobody holds it now" : "free"));
    this.waiters.replaceChildren(...line.wait.map((claim, at) => this.waiter(claim, at + 1)));
    if (line.waiting > line.wait.length) this.waiters.append(more(line.waiting - line.wait.length, "wait"));
    this.waiters.hidden = !line.waiting;
    const kind = line.room || (line.hold[0] ?? line.wait[0])?.kind || "";
    write(this.facts, [kind, line.waiting ? count(line.waiting, "waiter") : ""].filter(Boolean).join(" · "));
  }

  holder(claim, known) {
    const bar = known ?? new Bar();
    const left = make("span", { class: "left" });
    const age = make("span");
    const weight = claim.capacity > 1 && claim.weight > 1 ? `weight ${claim.weight}` : "";
    const mode = claim.kind === "read" || claim.kind === "write" ? claim.kind : weight;
    const item = make("li", { class: "holder" },
      make("span", { class: "who" }, claim.who),
      make("span", { class: "for" }, make("span", { class: "prefix" }, "held for "), age),
      make("span", { class: "token" }, `token ${claim.token}`),
      bar.element,
      left,
    );
    if (mode) item.append(make("span", { class: "mode" }, mode));
    if (claim.meta) item.append(make("span", { class: "meta" }, metaText(claim)));
    this.ages.push({ element: age, since: began(claim) });
    this.bars.push({ claim, bar, left, item });
    return item;
  }

  waiter(claim, place) {
    const age = make("span", { class: "for" });
    this.ages.push({ element: age, since: began(claim) });
    const item = make("li", { class: "waiter" }, make("b", { class: "place" }, String(place)), make("span", { class: "who" }, claim.who), age);
    if (claim.kind === "read" || claim.kind === "write") item.append(make("span", { class: "mode" }, claim.kind));
    return item;
  }

  tick(now) {
    for (const { element, since } of this.ages) write(element, duration(now - since));
    let late = false;
    for (const { claim, bar, left, item } of this.bars) {
      bar.show(claim, now);
      const isNow = isLate(claim, now);
      late ||= isNow;
      item.classList.toggle("late", isNow);
      write(left, (isNow ? "not renewed, " : "") + remaining(claim.expires - now, claim.ttl));
    }
    this.element.classList.toggle("is-late", late);
    if (!this.flagUntil || this.flagUntil < performance.now()) {
      this.flagUntil = 0;
      this.flag.hidden = !late;
      this.flag.className = "flag late";
      if (late) write(this.flag, "not renewed");
    }
  }

  // A loss or an eviction: a flash, and words for those who do not see it.
  flash(what) {
    this.flagUntil = performance.now() + 15000;
    this.flag.hidden = false;
    this.flag.className = `flag ${what}`;
    write(this.flag, what);
    this.element.classList.remove("flash-lost", "flash-evicted");
    void this.element.offsetWidth; // begins the animation again
    this.element.classList.add(`flash-${what}`);
    setTimeout(() => this.element.classList.remove(`flash-${what}`), FLASH);
  }
}

function more(number, what) {
  return make("li", { class: "more" }, `+${number.toLocaleString("en")} more ${what}`);
}
