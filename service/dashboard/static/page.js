// Behaviour of pages: follow a live run, keep opened messages, and name this service in commands to copy.
"use strict";
(() => {
  const live = document.querySelector("[data-follow]");
  if (live) {
    const source = new EventSource(live.dataset.follow);
    const changed = () => {
      live.dispatchEvent(new Event("plevel:change"));
      document.dispatchEvent(new Event("plevel:change"));
    };
    source.addEventListener("change", changed);
    source.addEventListener("end", () => { source.close(); changed(); });
    window.addEventListener("pagehide", () => source.close());
  }
  // Do not redraw while a message is open, but once it is closed.
  let missed = false;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    if (target.id === "live" && target.querySelector("details[open]")) {
      event.detail.shouldSwap = false;
      missed = true;
    }
  });
  document.addEventListener("toggle", () => {
    const shown = document.getElementById("live");
    if (!missed || !shown || shown.querySelector("details[open]")) return;
    missed = false;
    shown.dispatchEvent(new Event("plevel:change"));
  }, true);  // captured, as it does not bubble
})();
