// What the server has told of one store: its lines by name, its clock, its state.

export class Model {
  constructor() {
    this.lines = new Map();
    this.status = { state: "new" };
    this.lately = [];
    this.version = 0;
    this.clock = null;
    this.heard = 0;
  }

  // Seconds by the server's clock: the browser's own may be wrong.
  now() {
    return this.clock === null ? Date.now() / 1000 : this.clock + (performance.now() - this.heard) / 1000;
  }

  // Take one message; what changed by it.
  apply(message) {
    const change = { changed: new Set(), renewed: new Set(), gone: new Set(), news: message.news ?? [], all: false };
    this.clock = message.now || Date.now() / 1000;
    this.heard = performance.now();
    this.version = message.v;
    this.status = message.status;
    if (message.all) {
      change.all = true;
      const there = new Map(message.all.map((line) => [line.name, line]));
      for (const name of this.lines.keys()) if (!there.has(name)) change.gone.add(name);
      this.lines = there;
      for (const name of there.keys()) change.changed.add(name);
      this.lately = message.lately;
    }
    for (const line of message.lines ?? []) {
      this.lines.set(line.name, line);
      change.changed.add(line.name);
    }
    for (const [name, moments] of message.renewed ?? []) {
      const line = this.lines.get(name);
      if (!line) continue;
      line.hold.forEach((claim, at) => { claim.expires = moments[at]; });
      change.renewed.add(name);
    }
    for (const name of message.gone ?? []) {
      this.lines.delete(name);
      change.gone.add(name);
    }
    for (const one of change.news) if (one.what !== "took") this.lately.push(one);
    this.lately = this.lately.slice(-40);
    return change;
  }
}

// Which lines need a person first: many who wait, behind one who has held for long.
export function urgency(line, now) {
  const head = line.hold[0] ?? line.wait[0];
  const held = head ? Math.max(0, now - began(head)) : 0;
  return 4 * Math.log2(1 + line.waiting) + Math.log2(1 + held) + (line.holders ? 0 : 8 * Math.sign(line.waiting));
}

// When a claim began to do what it does now: to hold, or else to wait.
export function began(claim) {
  return claim.granted_at ?? claim.enqueued_at;
}

// Renewed every third of its ttl, a lease has two thirds left at any time; with less than one, two renewals were missed.
export function isLate(claim, now) {
  return claim.expires - now < claim.ttl / 3;
}
