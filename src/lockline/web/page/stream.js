// What the server tells: by a stream of events, or, where that is not to be had, by asking every few seconds.

const ASK_EVERY = 3000;
const TRY_AGAIN = 30000;
const HIDDEN_FOR = 20000; // A tab that nobody looks at gives its connection back: a browser has only six for a server.

export class Stream {
  constructor(store, seen, tell, say) {
    this.store = store;
    this.seen = seen; // () => version
    this.tell = tell; // (messages) => void
    this.say = say; // ("live" | "asking" | "lost" | "stranger") => void
    this.source = null;
    this.timer = null;
    this.sleeper = null;
    this.over = false;
    this.onVisibility = () => this.noticeVisibility();
    document.addEventListener("visibilitychange", this.onVisibility);
    this.open();
  }

  close() {
    this.over = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    clearTimeout(this.sleeper);
    this.stop();
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  open() {
    this.stop();
    const source = new EventSource(`api/stream?store=${this.store}`);
    this.source = source;
    source.onmessage = (event) => {
      this.say("live");
      this.tell([JSON.parse(event.data)]);
    };
    source.onerror = () => {
      if (this.over || this.source !== source) return;
      if (source.readyState === EventSource.CLOSED) this.ask(performance.now() + TRY_AGAIN);
      else this.say("lost");
    };
  }

  async ask(until) {
    this.source?.close();
    if (this.over) return;
    try {
      const answer = await fetch(`api/changes?store=${this.store}&since=${this.seen()}`);
      if (this.over) return;
      if (answer.status === 401) return this.say("stranger");
      if (answer.ok) {
        this.tell(await answer.json());
        this.say("asking");
      }
    } catch {
      this.say("lost");
    }
    this.timer = setTimeout(() => (performance.now() < until ? this.ask(until) : this.open()), ASK_EVERY);
  }

  noticeVisibility() {
    clearTimeout(this.sleeper);
    if (document.hidden) this.sleeper = setTimeout(() => this.stop(), HIDDEN_FOR);
    else if (this.source === null || this.source.readyState === EventSource.CLOSED) this.open();
  }
}
