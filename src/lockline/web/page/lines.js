// The list of all lines: in order, filtered, drawn where it is looked at.

import { count, write } from "./format.js";
import { began, urgency } from "./model.js";
import { Row } from "./row.js";

const REST = 2500; // Milliseconds after the last touch before the order may change under the pointer.
const ORDER_EVERY = 2000;

export class Lines {
  constructor(list, onToggle) {
    this.list = list;
    this.onToggle = onToggle;
    this.rows = new Map();
    this.order = "urgent";
    this.sought = "";
    this.touched = -REST;
    this.ordered = 0;
    this.seer = new IntersectionObserver((entries) => this.notice(entries), { rootMargin: "400px" });
    for (const event of ["pointermove", "pointerdown", "wheel"]) {
      list.addEventListener(event, () => { this.touched = performance.now(); }, { passive: true });
    }
  }

  notice(entries) {
    for (const { target, isIntersecting } of entries) {
      target.row.visible = isIntersecting;
      if (isIntersecting && this.model) target.row.draw(this.model.now());
    }
  }

  clear() {
    for (const row of this.rows.values()) this.seer.unobserve(row.element);
    this.rows.clear();
    this.list.replaceChildren();
    this.ordered = 0;
  }

  apply(model, change) {
    this.model = model;
    const now = model.now();
    let isNew = false;
    for (const name of change.changed) {
      const line = model.lines.get(name);
      let row = this.rows.get(name);
      if (row) {
        row.line = line;
      } else {
        row = new Row(line, this.onToggle);
        this.rows.set(name, row);
        row.element.hidden = !this.matches(row);
        isNew = true;
      }
      if (row.visible || !row.drawn) row.draw(now);
    }
    for (const name of change.renewed) {
      const row = this.rows.get(name);
      if (row?.visible) row.tick(now);
    }
    for (const name of change.gone) this.remove(name);
    for (const one of change.news) if (one.what !== "took") this.rows.get(one.name)?.flash(one.what);
    if (isNew || performance.now() - this.ordered > ORDER_EVERY) this.arrange();
    if (isNew && this.sought) this.filter(this.sought);
  }

  remove(name) {
    const row = this.rows.get(name);
    if (!row) return;
    const next = row.element.contains(document.activeElement) ? row.element.nextElementSibling ?? row.element.previousElementSibling : null;
    this.seer.unobserve(row.element);
    row.element.remove();
    this.rows.delete(name);
    next?.row?.button.focus();
  }

  tick(now) {
    for (const row of this.rows.values()) if (row.visible) row.draw(now);
  }

  // Put the rows in order; not while somebody is at work in them, then new ones come last.
  arrange() {
    this.ordered = performance.now();
    const rows = [...this.rows.values()];
    const busy = this.list.contains(document.activeElement) && document.activeElement !== this.list;
    if (busy || performance.now() - this.touched < REST) {
      this.list.append(...rows.filter((row) => !row.element.parentNode).map((row) => this.watched(row)));
      return;
    }
    const now = this.model.now();
    const since = (line) => (line.hold.length || line.wait.length ? began(line.hold[0] ?? line.wait[0]) : now);
    const by = {
      urgent: (row) => -urgency(row.line, now),
      held: (row) => since(row.line),
      name: () => 0,
    }[this.order];
    const keyed = rows.map((row) => [by(row), row.line.name, row]);
    keyed.sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : 1));
    if (!this.list.firstChild) {
      this.list.append(...keyed.map(([, , row]) => this.watched(row)));
      return;
    }
    let place = this.list.firstElementChild;
    for (const [, , row] of keyed) {
      if (row.element === place) place = place.nextElementSibling;
      else this.list.insertBefore(this.watched(row), place);
    }
  }

  watched(row) {
    if (!row.element.parentNode) this.seer.observe(row.element);
    return row.element;
  }

  filter(sought) {
    this.sought = sought;
    for (const row of this.rows.values()) row.element.hidden = !this.matches(row);
  }

  matches(row) {
    return !this.sought || row.text.includes(this.sought);
  }

  shown() {
    return [...this.list.children].filter((element) => !element.hidden).map((element) => element.row);
  }

  // Move to the next or previous line, from wherever the person is.
  step(by) {
    const rows = this.shown();
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.element.contains(document.activeElement));
    const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by));
    rows[next].button.focus();
    rows[next].element.scrollIntoView({ block: "nearest" });
  }

  say(element, total) {
    const all = this.rows.size;
    const shown = this.sought ? this.shown().length : all;
    const part = this.sought ? `${shown.toLocaleString("en")} of ` : total > all ? `${all.toLocaleString("en")} of ` : "";
    write(element, part + count(this.sought ? all : Math.max(all, total), "line"));
  }
}
