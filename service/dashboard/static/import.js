// The import page: sends the files one after the other, and shows the summary and rejected entries of each.
// Text from a file or the service only ever becomes text nodes.
"use strict";
(() => {
  const SHOWN = 50;
  const form = document.getElementById("import");
  const chosen = document.getElementById("files");
  const answers = document.getElementById("imported");

  const make = (tag, className, ...content) => {
    const element = document.createElement(tag);
    element.className = className;
    element.append(...content);
    return element;
  };
  const row = (tag, cells) => make("tr", "", ...cells.map((c) => make(tag, "", String(c))));
  const table = (name, head, rows) => {
    const region = make("div", "scroll", make("table", "", make("thead", "", row("th", head)),
      make("tbody", "", ...rows.map((r) => row("td", r)))));
    region.tabIndex = 0;
    region.role = "region";
    region.ariaLabel = name;
    return region;
  };

  const showSummary = (card, name, found) => {
    const list = make("dl", "tiles");
    for (const [label, count] of [["Read", found.read], ["New", found.new],
      ["Known already", found.known], ["Rejected", found.rejected]])
      list.append(make("div", "tile", make("dt", "", label), make("dd", "", make("b", "", String(count)))));
    card.append(list);
    const reasons = Object.entries(found.reasons);
    if (reasons.length) card.append(table(`Reasons in ${name}`, ["Reason", "Entries"], reasons));
    const rejects = found.rejects ?? [];
    if (!rejects.length) return;
    card.append(make("h3", "", found.rejected > rejects.length
      ? `The first ${rejects.length} rejected entries` : "Rejected entries"));
    card.append(table(`Rejected entries of ${name}`, ["Line", "Reason", "Why", "Text"],
      rejects.map((r) => [r.line, r.reason, r.detail, r.text.slice(0, 300)])));
  };

  const send = async (name, body) => {
    const card = make("section", "card", make("h2", "", name));
    const state = make("p", "quiet", "Reading …");
    card.append(state);
    answers.prepend(card);
    const query = new URLSearchParams({ name, rejects: SHOWN });
    for (const [name, field] of [["target", "target"], ["device_model", "model"]]) {
      const value = document.getElementById(field).value.trim();
      if (value) query.set(name, value);
    }
    try {
      const response = await fetch(`/v1/records:import?${query}`, { method: "POST", body });
      const found = await response.json();
      if (!response.ok) throw new Error(found.detail || found.title);
      state.remove();
      showSummary(card, name, found);
    } catch (error) {
      state.className = "notice warn";
      state.textContent = `${name} was not read to its end: ${error.message}. What was read until then is kept; send it again.`;
    }
  };

  // MetaSchedule's records refer to lines of the other file: the two are sent in one body. Of several pairs, names do
  // not tell which belong together.
  const PAIR = ["database_workload.json", "database_tuning_record.json"];
  const grouped = (files) => {
    const found = [...files].map((f) => [f.name, f]);
    const pair = PAIR.map((name) => found.filter((f) => f[0] === name));
    if (!pair.every((alike) => alike.length === 1)) return found;
    const [[workloads], [records]] = pair;
    const others = found.filter((f) => f !== workloads && f !== records);
    return [...others, [PAIR[1], new Blob([workloads[1], "\n", records[1]])]];
  };

  let last = Promise.resolve();
  const take = (files) => {
    for (const [name, body] of grouped(files)) last = last.then(() => send(name, body));
  };
  chosen.addEventListener("change", () => { take(chosen.files); chosen.value = ""; });
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const kind of ["dragover", "dragleave", "drop"]) form.addEventListener(kind, (event) => {
    event.preventDefault();
    form.classList.toggle("over", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files);
  });
})();
