// The charts: best-so-far curves, times against a knob, and parallel coordinates. Their data comes
// as JSON from the addresses in data-… attributes; names only ever become text nodes.
"use strict";
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (i) => css(`--c${(i % 8) + 1}`);
  const DASHES = [[], [6, 3], [2, 3]];

  // Three figures, as the pages write times.
  const figures = (v) => v >= 100 ? v.toFixed(0) : v.toPrecision(3);
  const showSeconds = (s) => {
    if (s == null) return "–";
    for (const [factor, unit] of [[1, "s"], [1e3, "ms"], [1e6, "µs"]])
      if (s * factor >= 0.9995) return `${figures(s * factor)} ${unit}`;
    return `${figures(s * 1e9)} ns`;
  };
  const showElapsed = (s) => s >= 7200 ? `${+(s / 3600).toPrecision(3)} h`
    : s >= 120 ? `${+(s / 60).toPrecision(3)} min` : `${+s.toPrecision(3)} s`;

  const say = (figure, text) => {
    const p = document.createElement("p");
    p.className = "empty";
    p.textContent = text;
    figure.replaceChildren(p);
  };
  const load = async (figure, url) => {
    try {
      const response = await fetch(url, { headers: { accept: "application/json" } });
      if (!response.ok) throw new Error(`HTTP ${response.status}`);
      return await response.json();
    } catch (error) {
      say(figure, `The data could not be loaded (${error.message}): reload the page to try again.`);
      return null;
    }
  };

  const axis = (values, space) => ({
    stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false },
    values, space, font: "12px system-ui, sans-serif",
  });
  // Powers of ten alone would leave a curve within one decade without any label.
  const logSplits = (low, high) => {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const m of high / low > 1000 ? [1] : high / low > 30 ? [1, 2, 5]
        : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8]) {
        const v = m * 10 ** e;
        if (v >= low * 0.999 && v <= high * 1.001) found.push(v);
      }
    if (found.length >= 3) return found;
    return Array.from({ length: 5 }, (_, i) => low * (high / low) ** (i / 4));
  };
  const timeAxis = () => ({
    ...axis((u, splits) => splits.map(showSeconds), 26), size: 64,
    splits: (u, i, low, high) => logSplits(low, high), filter: (u, splits) => splits,
  });
  const logRange = (u, low, high) =>
    low == null ? [1e-6, 1e-3] : [low / (high / low) ** 0.06 / 1.02, high * (high / low) ** 0.06 * 1.02];

  const drawCurves = (figure, data) => {
    const against = figure.dataset.x === "time" ? 1 : 0;
    const curves = data.curves.filter((c) => c.points.length);
    if (!curves.length) return say(figure, "Nothing has been timed yet: the curves begin with the first result.");
    const tables = curves.map((c) => {
      const xs = c.points.map((p) => p[against]);
      const ys = c.points.map((p) => p[2]);
      const end = against ? c.elapsed_s : c.trials;
      if (end > xs[xs.length - 1]) { xs.push(end); ys.push(ys[ys.length - 1]); }
      return [xs, ys];
    });
    const joined = uPlot.join(tables);
    const stepped = uPlot.paths.stepped({ align: 1 });
    return plot(figure, joined, {
      scales: { x: { time: false }, y: { distr: 3, range: logRange } },
      axes: [{ ...axis((u, s) => s.map((v) => against ? showElapsed(v) : String(v)), 60), size: 30, incrs: against ? undefined : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000] }, timeAxis()],
      series: [
        { label: against ? "elapsed" : "trial", value: (u, v) => v == null ? "–" : against ? showElapsed(v) : String(v) },
        ...curves.map((c, i) => ({
          label: c.name, stroke: colour(i), width: 2, dash: DASHES[Math.floor(i / 8) % 3], paths: stepped,
          spanGaps: true, points: { show: curves[i].points.length < 2, size: 6 },
          value: (u, v) => showSeconds(v),
        })),
      ],
    });
  };

  const plot = (figure, data, options) => {
    figure.replaceChildren();
    const made = new uPlot({
      width: figure.clientWidth, height: figure.clientHeight, ...options,
      cursor: { drag: { x: true, y: false } }, legend: { live: true },
      // The figure keeps its height: subtract the legend's from the plot's, after layout.
      hooks: { ready: [(u) => queueMicrotask(() => u.setSize({
        width: figure.clientWidth,
        height: figure.clientHeight - figure.querySelector(".u-legend").offsetHeight,
      }))] },
    }, data, figure);
    const legend = figure.querySelector(".u-legend");
    legend.tabIndex = 0;
    return made;
  };

  const widths = new ResizeObserver((entries) => {
    for (const { target } of entries) if (target.redraw && target.clientWidth !== target.drawnAt) target.redraw();
  });
  const keep = (figure, draw) => {
    figure.redraw = () => { figure.drawnAt = figure.clientWidth; figure.drawn?.destroy?.(); figure.drawn = draw(); };
    figure.redraw();
    widths.observe(figure);
  };

  // The choices of a page are in its address, and in the links to its other forms.
  const choose = (choices, links) => {
    const write = (address) => {
      const url = new URL(address);
      for (const [name, value] of Object.entries(choices))
        if (value) url.searchParams.set(name, value); else url.searchParams.delete(name);
      return url.href;
    };
    history.replaceState(null, "", write(location));
    for (const link of links) link.href = write(link.href);
  };
  const forms = () => [...document.querySelectorAll("#curves a")];
  const by = (address) => new URL(address).searchParams.get("by");

  // Curves in one chart: all, or the two named by the lists (and the address), with their figures.
  const compare = (section, figure, data) => {
    const lists = [...section.querySelectorAll("select")];
    const draw = () => {
      const names = lists.map((l) => l.value).filter(Boolean);
      const curves = data.curves.filter((c) => !names.length || names.includes(c.name));
      const ends = curves.map((c) => c.points[c.points.length - 1]);
      // Times of different device models do not compare.
      const lowest = (model) =>
        Math.min(...ends.map((e, i) => e && curves[i].device_model === model ? e[2] : Infinity));
      section.querySelector("tbody").replaceChildren(...curves.map((c, i) => {
        const end = ends[i];
        const row = document.createElement("tr");
        const cells = [c.name, showSeconds(end?.[2]), end ? `${(end[2] / lowest(c.device_model)).toFixed(2)}×` : "–",
          end ? `${end[0]} of ${c.trials}` : `– of ${c.trials}`, showElapsed(c.elapsed_s)];
        row.replaceChildren(...cells.map((text, j) => {
          const cell = document.createElement(j ? "td" : "th");
          if (j) cell.className = "num"; else cell.scope = "row";
          cell.textContent = text;
          return cell;
        }));
        return row;
      }));
      keep(figure, () => drawCurves(figure, { curves }));
    };
    const asked = new URLSearchParams(location.search);
    for (const list of lists) {
      list.replaceChildren(new Option("all", ""), ...data.curves.map((c) => new Option(c.name, c.name)));
      if (data.curves.some((c) => c.name === asked.get(list.name))) list.value = asked.get(list.name);
      list.addEventListener("change", () => {
        // Other groups have curves of other names.
        choose({ [list.name]: list.value }, forms().filter((link) => by(link.href) === by(location)));
        draw();
      });
    }
    draw();
  };

  for (const figure of document.querySelectorAll("[data-curve]")) {
    const beside = document.querySelector("#beside");
    let asked = 0;
    const refresh = async () => {
      const own = ++asked;
      const data = await load(figure, figure.dataset.curve);
      if (!data || own !== asked) return;
      if (beside) compare(beside, figure, data);
      else keep(figure, () => drawCurves(figure, data));
    };
    refresh();
    let waiting = null;
    document.addEventListener("plevel:change", () => {
      waiting ??= setTimeout(() => { waiting = null; refresh(); }, 1500);
    });
  }

  // Times against one knob, a series for each value of another.
  const drawScatter = (figure, data, x, by) => {
    const groups = new Map();
    const n = data.knobs[by].values.length;
    const bins = Math.min(n, 8);
    for (const p of data.points) {
      if (p[2 + x] < 0) continue;
      const bin = p[2 + by] < 0 ? -1 : Math.floor(p[2 + by] * bins / n);
      if (!groups.has(bin)) groups.set(bin, []);
      // Jitter within a value by the record's id, so that points do not hide each other.
      groups.get(bin).push([p[2 + x] + ((p[0] * 0.618034) % 1 - 0.5) * 0.5, p[1]]);
    }
    const names = data.knobs[by].values;
    const name = (bin) => {
      if (bin < 0) return "other";
      const first = Math.ceil(bin * n / bins), last = Math.ceil((bin + 1) * n / bins) - 1;
      return first === last ? names[first] : `${names[first]} … ${names[last]}`;
    };
    const keys = [...groups.keys()].sort((a, b) => a - b);
    const tables = keys.map((k) => {
      const points = groups.get(k).sort((a, b) => a[0] - b[0]);
      return [points.map((p) => p[0]), points.map((p) => p[1])];
    });
    const values = data.knobs[x].values;
    return plot(figure, uPlot.join(tables), {
      scales: { x: { time: false, range: [-0.7, values.length - 0.3] }, y: { distr: 3, range: logRange } },
      axes: [
        { ...axis((u, s) => s.map((v) => values[v] ?? ""), 50), size: 30, splits: (u) => {
          const step = Math.max(1, Math.ceil(values.length / Math.max(1, u.bbox.width / devicePixelRatio / 56)));
          return values.map((_, k) => k).filter((k) => k % step === 0);
        } },
        timeAxis(),
      ],
      series: [
        { label: data.knobs[x].name, value: (u, v) => v == null ? "–" : values[Math.round(v)] ?? "" },
        ...keys.map((k, i) => ({
          label: `${data.knobs[by].name} ${name(k)}`, stroke: colour(i), paths: () => null,
          points: { show: true, size: 5, fill: colour(i), space: 0, width: 0 }, value: (u, v) => showSeconds(v),
        })),
      ],
    });
  };

  // An axis is a row, so that its name has the whole width, also on a phone.
  const ROW = 46, EDGE = 8;
  const drawParallel = (figure, data) => {
    const make = (tag, attributes, text) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      if (text !== undefined) element.textContent = text;
      return element;
    };
    const times = data.points.map((p) => Math.log(p[1]));
    const low = Math.min(...times), high = Math.max(...times);
    const axes = [...data.knobs.map((k, i) => ({
      name: k.name, first: k.values[0], last: k.values[k.values.length - 1],
      at: (p) => p[2 + i] < 0 ? null : k.values.length < 2 ? 0.5 : p[2 + i] / (k.values.length - 1),
    })), {
      name: "time", first: showSeconds(Math.exp(low)), last: showSeconds(Math.exp(high)),
      at: (p) => high > low ? (Math.log(p[1]) - low) / (high - low) : 0,
    }];
    const width = figure.clientWidth, height = ROW * axes.length + EDGE;
    const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "presentation" });
    const y = (i) => ROW * i + 26;
    const order = data.points.map((p, i) => i).sort((a, b) => times[b] - times[a]);
    const fast = order.length - Math.ceil(order.length / 10);
    order.forEach((index, rank) => {
      const places = axes.flatMap((axis, i) => {
        const share = axis.at(data.points[index]);
        // Offset within a value's place by rank, so that equal lines do not hide each other.
        const off = i < axes.length - 1 ? (rank / order.length - 0.5) * 8 : 0;
        return share == null ? [] : [`${(EDGE + (width - 2 * EDGE) * share + off).toFixed(1)},${y(i)}`];
      });
      svg.append(make("polyline", {
        points: places.join(" "), class: rank < fast ? "line" : "line fast",
        "stroke-opacity": rank < fast ? Math.max(0.05, Math.min(0.3, 40 / order.length)) : 0.55,
      }));
    });
    axes.forEach((axis, i) => {
      svg.append(make("line", { class: "rule", x1: EDGE, x2: width - EDGE, y1: y(i), y2: y(i) }));
      svg.append(make("text", { class: "name", x: EDGE, y: y(i) - 7 }, axis.name));
      svg.append(make("text", { x: EDGE, y: y(i) + 13 }, axis.first));
      svg.append(make("text", { x: width - EDGE, y: y(i) + 13, "text-anchor": "end" }, axis.last));
    });
    figure.replaceChildren(svg);
    return null;
  };

  const section = document.querySelector("[data-points]");
  if (section) (async () => {
    const scatter = section.querySelector(".scatter");
    const parallel = section.querySelector(".parallel");
    const data = await load(scatter, section.dataset.points);
    if (!data) return;
    if (!data.points.length) return say(scatter, "Nothing has been timed yet.");
    const [knob, shade] = ["#knob", "#colour"].map((id) => section.querySelector(id));
    for (const select of [knob, shade])
      select.replaceChildren(...data.knobs.map((k, i) => new Option(k.name, String(i))));
    shade.value = String(Math.min(1, data.knobs.length - 1));
    const asked = new URLSearchParams(location.search);
    for (const [select, name] of [[knob, "knob"], [shade, "colour"]]) {
      const i = data.knobs.findIndex((k) => k.name === asked.get(name));
      if (i >= 0) select.value = String(i);
    }
    section.querySelector("#sampled").textContent = data.points.length < data.total
      ? `${data.points.length} of ${data.total} trials: the fastest, and a regular sample of the others`
      : `${data.total} trials`;
    const draw = () => keep(scatter, () => drawScatter(scatter, data, +knob.value, +shade.value));
    for (const select of [knob, shade]) select.addEventListener("change", () => {
      choose({ knob: data.knobs[+knob.value].name, colour: data.knobs[+shade.value].name }, forms());
      draw();
    });
    draw();
    keep(parallel, () => drawParallel(parallel, data));
  })();

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const figure of document.querySelectorAll(".chart")) figure.redraw?.();
  });
})();
