// What a page does beside showing itself: follow a live run, and keep open what is being read.
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
  // A message that somebody has opened stays: the next change after it is closed redraws.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    if (target.id === "live" && target.querySelector("details[open]")) event.detail.shouldSwap = false;
  });
})();
