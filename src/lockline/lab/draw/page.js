"use strict";
(() => {
  const runs = JSON.parse(document.getElementById("runs").textContent);
  const dialog = document.getElementById("run");
  const part = (name) => document.getElementById("run-" + name);

  function show(name) {
    const run = runs[name];
    if (!run) return;
    part("kind").textContent = (run.verdict + " " + run.figure).trim();
    part("kind").className = "kind chip " + run.kind;
    part("title").textContent = run.lock + " · " + run.failure;
    part("story").textContent = run.story;
    part("picture").innerHTML = run.svg;
    part("cause").textContent = run.cause;
    part("cure").textContent = run.cure;
    part("link").href = run.link;
    part("command").textContent = run.command;
    const facts = Object.entries(run.facts).map(([key, value]) => key + ": " + value);
    if (run.expected !== run.verdict) facts.unshift("the literature says: " + run.expected);
    if (run.source) facts.push("source: " + run.source);
    part("facts").textContent = facts.join(" · ");
    if (!dialog.open) dialog.showModal();
    history.replaceState(null, "", "#" + name);
  }

  document.getElementById("matrix").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-run]");
    if (button) show(button.dataset.run);
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
  if (location.hash.length > 1) show(decodeURIComponent(location.hash.slice(1)));
})();
