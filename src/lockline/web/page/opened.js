// A line that somebody has opened: everybody in it, what they say of themselves, and what happened here.

import { clock, duration, make, remaining, write } from "./format.js";
import { began } from "./model.js";

export class Opened {
  constructor(row, store, mayEvict, onEvict) {
    this.row = row;
    this.store = store;
    this.mayEvict = mayEvict;
    this.onEvict = onEvict;
    this.shape = "";
    this.busy = false;
    this.again = false;
    this.moments = [];
    row.opened.hidden = false;
    row.button.setAttribute("aria-expanded", "true");
    row.element.classList.add("is-open");
    this.fetch();
  }

  close() {
    this.row.opened.hidden = true;
    this.row.opened.replaceChildren();
    this.row.button.setAttribute("aria-expanded", "false");
    this.row.element.classList.remove("is-open");
    this.over = true;
  }

  // From what the server has seen anyway: no question to the store. One at a time, however fast the line moves.
  async fetch() {
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    try {
      const answer = await fetch(`api/line?store=${this.store}&name=${encodeURIComponent(this.row.line.name)}`);
      if (answer.ok && !this.over) this.show(await answer.json());
    } catch {
      // The stream says that the server is gone.
    } finally {
      this.busy = false;
      if (this.again && !this.over) {
        this.again = false;
        setTimeout(() => this.fetch(), 500);
      }
    }
  }

  show(line) {
    const shape = JSON.stringify([line.hold.map((one) => one.id), line.wait.map((one) => one.id), line.history.length && line.history[0]]);
    this.line = line;
    if (shape !== this.shape) {
      const focused = document.activeElement?.dataset?.claim;
      this.shape = shape;
      this.rebuild();
      if (focused) this.row.opened.querySelector(`[data-claim="${CSS.escape(focused)}"]`)?.focus();
    }
    const now = new Map([...line.hold, ...line.wait].map((claim) => [claim.id, claim]));
    for (const moment of this.moments) moment.claim = now.get(moment.claim.id) ?? moment.claim;
  }

  rebuild() {
    this.moments = [];
    const { line } = this;
    const claims = [...line.hold.map((claim) => [claim, "holds"]), ...line.wait.map((claim, at) => [claim, `${at + 1}`])];
    const parts = [];
    if (claims.length) {
      const head = ["Place", "Who", "Token", "Since", "For", "Left", "Says of itself"];
      const table = make("table", {},
        make("caption", {}, "In line"),
        make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
        make("tbody", {}, ...claims.map(([claim, place]) => this.claim(claim, place))),
      );
      parts.push(make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "In line" }, table));
      const hidden = line.holders + line.waiting - claims.length;
      if (hidden > 0) parts.push(make("p", { class: "hint" }, `and ${hidden.toLocaleString("en")} more behind these`));
    }
    const history = line.history.length
      ? make("ol", {}, ...line.history.map(happened))
      : make("p", { class: "hint" }, "Nothing has happened here since somebody began to look.");
    parts.push(make("section", { class: "history", "aria-label": "Recent history" }, make("h3", {}, "Recent history"), history));
    this.row.opened.replaceChildren(...parts);
  }

  claim(claim, place) {
    const age = make("td", { "data-label": "For" });
    const left = make("td", { "data-label": "Left" });
    this.moments.push({ claim, age, left });
    const holds = place === "holds";
    const meta = make("td", { "data-label": "Says of itself" });
    if (claim.meta) meta.append(make("dl", { class: "says" }, ...claim.meta.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)])));
    else meta.append("–");
    const row = make("tr", { class: holds ? "holds" : "" },
      make("td", { "data-label": "Place" }, place),
      make("td", { "data-label": "Who", class: "who" }, claim.who),
      make("td", { "data-label": "Token", class: "token" }, holds ? claim.token : "–"),
      make("td", { "data-label": "Since" }, clock(began(claim))),
      age, left, meta,
    );
    if (holds && this.mayEvict) {
      const button = make("button", { type: "button", class: "evict", "data-claim": claim.id, "aria-label": `Evict ${claim.who}` }, "Evict…");
      button.addEventListener("click", () => this.onEvict(this.row.line, claim));
      row.children[0].append(button);
    }
    return row;
  }

  tick(now) {
    for (const { claim, age, left } of this.moments) {
      write(age, duration(now - began(claim)));
      write(left, remaining(claim.expires - now, claim.ttl));
    }
  }
}

export function happened(news) {
  const held = news.what === "took" ? "" : ` after ${duration(news.held)}`;
  const item = make("li", { class: news.what.replace(" ", "-") },
    make("time", {}, clock(news.at)),
    make("b", {}, news.what),
    make("span", { class: "who" }, news.who),
    make("span", { class: "hint" }, `token ${news.token}${held}`),
  );
  if (news.why) item.append(make("span", { class: "why" }, news.why));
  return item;
}
