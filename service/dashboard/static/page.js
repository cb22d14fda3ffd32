// Behaviour of pages: follow a live run, keep opened messages, the focus and the place of tables when the page is
// redrawn, and say when the service does not answer.
"use strict";
(() => {
  const live = document.getElementById("live");
  const warning = (text) => {
    const note = document.createElement("p");
    note.className = "notice warn";
    note.role = "alert";
    note.textContent = text;
    return note;
  };
  // Numbers that are no longer updated look like new ones.
  let unanswered = null;
  const mark = (answers) => {
    if (answers) {
      unanswered?.remove();
      unanswered = null;
    } else if (!unanswered) {
      const at = new Date().toLocaleTimeString();
      unanswered = warning(`The service has not answered since ${at}: what is shown is older. Reload the page later.`);
      live.before(unanswered);
    }
  };
  document.addEventListener("htmx:sendError", ({ detail: { target } }) => {
    if (target === live) mark(false);
    else target.replaceChildren(warning("The service does not answer: try again later."));
  });

  if (live?.dataset.follow) {
    const source = new EventSource(live.dataset.follow);
    const changed = () => {
      live.dispatchEvent(new Event("plevel:change"));
      document.dispatchEvent(new Event("plevel:change"));
    };
    // One error is no failure: a proxy may end a stream, which the browser opens again.
    let errors = 0;
    source.addEventListener("open", () => { errors = 0; });
    source.addEventListener("error", () => {
      if (++errors > 1 || source.readyState === EventSource.CLOSED) mark(false);
    });
    source.addEventListener("change", changed);
    source.addEventListener("end", () => { source.close(); changed(); });
    window.addEventListener("pagehide", () => source.close());
  }
  // The elements of a redrawn part are new ones, which are not focused, and whose tables are scrolled to their start.
  const name = (e) => e.id || e.getAttribute("href") || e.getAttribute("aria-label") || e.textContent;
  const alike = (tag, named) => [...live.querySelectorAll(tag)].filter((e) => name(e) === named);
  const look = () => {
    const focused = document.activeElement;
    const kept = [...live.querySelectorAll("*")].filter((e) => e === focused || e.scrollLeft)
      .map((e) => [e.tagName, name(e), alike(e.tagName, name(e)).indexOf(e), e.scrollLeft, e === focused]);
    return () => {
      for (const [tag, named, n, left, hadFocus] of kept) {
        const now = alike(tag, named)[n];
        if (!now) continue;
        now.scrollLeft = left;
        if (hadFocus) now.focus({ preventScroll: true });
      }
    };
  };
  let restore = () => {};
  // Do not redraw while a message is open, but once it is closed.
  let missed = false;
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target !== live) return;
    mark(true);
    if (live.querySelector("details[open]")) {
      event.detail.shouldSwap = false;
      missed = true;
    } else restore = look();
  });
  document.addEventListener("htmx:afterSwap", (event) => { if (event.detail.target === live) restore(); });
  document.addEventListener("toggle", () => {
    if (!missed || live.querySelector("details[open]")) return;
    missed = false;
    live.dispatchEvent(new Event("plevel:change"));
  }, true);  // captured, as it does not bubble
})();
