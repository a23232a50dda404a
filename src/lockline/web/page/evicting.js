// The question before an eviction: which holder, why, and who asks.

import { clock, write } from "./format.js";
import { began } from "./model.js";

const NAME = "lockline.name";

export class Evicting {
  constructor(about, store) {
    this.about = about;
    this.store = store;
    this.dialog = document.getElementById("evict");
    this.reason = document.getElementById("evict-reason");
    this.person = document.getElementById("evict-name");
    this.go = document.getElementById("evict-go");
    this.problem = document.getElementById("evict-problem");
    document.getElementById("evict-person").hidden = !about.asks_who;
    this.person.required = about.asks_who;
    this.person.value = localStorage.getItem(NAME) ?? "";
    document.getElementById("evict-cancel").addEventListener("click", () => this.dialog.close());
    document.getElementById("evict-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.dialog.addEventListener("close", () => this.back?.isConnected && this.back.focus());
  }

  ask(line, claim) {
    this.line = line;
    this.claim = claim;
    this.back = document.activeElement;
    this.reason.value = "";
    write(this.problem, "");
    write(document.getElementById("evict-title"), `Take ${line.shown ?? line.name} away?`);
    write(document.getElementById("evict-who"), `${claim.who} has held it since ${clock(began(claim))}, token ${claim.token}.`);
    this.dialog.showModal();
    this.reason.focus();
  }

  async send() {
    this.go.disabled = true;
    write(this.problem, "");
    try {
      const wish = {
        store: this.store(), name: this.line.name, token: this.claim.token, owner: this.claim.who,
        reason: this.reason.value, who: this.person.value,
      };
      if (this.about.asks_who) localStorage.setItem(NAME, this.person.value);
      const answer = await fetch("api/evict", {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Lockline-CSRF": this.about.csrf },
        body: JSON.stringify(wish),
      });
      const told = await answer.json();
      if (!answer.ok) write(this.problem, told.problem);
      else if (told.evicted) this.dialog.close();
      else write(this.problem, "Nothing was done: that holder has let go already, and nobody else was meant.");
    } catch {
      write(this.problem, "The server did not answer; whether it was done, the line will show.");
    } finally {
      this.go.disabled = false;
    }
  }
}
