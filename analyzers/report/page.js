"use strict";
// Draws the figures, answers hovers, sorts and searches tables. Reads nothing but this page.
(() => {
  const root = document.documentElement;
  const PAPER = 920; // of a figure, in pixels: browsers shrink a page by a quarter at most, and cut what is wider
  const NARROW = 620; // a figure less wide, in pixels, is drawn with the changes that it names for a phone
  const byId = (id) => document.getElementById(id);
  // what is in view is drawn at once, the rest when there is time
  const idle = () => new Promise((resolve) => (window.requestIdleCallback ? requestIdleCallback(resolve, { timeout: 1000 }) : setTimeout(resolve, 50)));
  const near = (node) => { const box = node.getBoundingClientRect(); return box.top < innerHeight * 1.5 && box.bottom > -innerHeight / 2; };
  const config = { responsive: true, displayModeBar: false, displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };

  function bytes(text) {
    const raw = atob(text);
    const found = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i += 1) found[i] = raw.charCodeAt(i);
    return found;
  }

  async function inflated(id) {
    const node = byId(id);
    if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to unpack them (it lacks DecompressionStream)");
    const stream = new Blob([bytes(node.textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const text = await new Response(stream).text();
    node.textContent = "";
    return text;
  }

  async function library() {
    if (window.Plotly) return;
    if (!byId("plotly-gz")) throw new Error("plotly.js could not be loaded from its server");
    const node = document.createElement("script");
    node.textContent = await inflated("plotly-gz"); // the page's policy knows its hash, and runs nothing else
    document.head.append(node);
    if (!window.Plotly) throw new Error("plotly.js was not allowed to run");
  }

  // ---- colours of text and grid: the page's, light or dark

  function themed(layout) {
    const style = getComputedStyle(root);
    const of = (name) => style.getPropertyValue(name).trim();
    const changes = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", "font.color": of("--text"), "hoverlabel.bgcolor": of("--card"),
      "hoverlabel.bordercolor": of("--line"), "hoverlabel.font.color": of("--text"), "legend.bgcolor": "rgba(0,0,0,0)",
    };
    for (const key of Object.keys(layout)) {
      if (!/^[xy]axis\d*$/.test(key)) continue;
      changes[`${key}.gridcolor`] = of("--grid");
      changes[`${key}.linecolor`] = of("--line");
      changes[`${key}.tickcolor`] = of("--line");
    }
    return changes;
  }

  function repaint(size = {}) {
    for (const node of document.querySelectorAll(".plot.drawn")) window.Plotly.relayout(node, { ...themed(node.layout), ...size });
  }

  function plain(changes, layout) {
    const result = structuredClone(layout);
    for (const [path, value] of Object.entries(changes)) {
      const keys = path.split(".");
      let at = result;
      for (const key of keys.slice(0, -1)) at = at[key] ??= {};
      at[keys.at(-1)] = value;
    }
    return result;
  }

  // ---- the timeline: steps one by one where few are in view, in bins of equal time where many are

  const kinds = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i1: Int8Array };
  const known = (value) => (Number.isNaN(value) ? null : value);

  function unpack(detail) {
    const columns = {};
    for (const [name, column] of Object.entries(detail.columns)) columns[name] = new kinds[column.type](bytes(column.data).buffer);
    return columns;
  }

  function inView(columns, low, high) {
    const found = [];
    for (let i = 0; i < columns.start_ms.length; i += 1) {
      if (columns.start_ms[i] <= high && columns.start_ms[i] + columns.dur_ms[i] >= low) found.push(i);
    }
    return found;
  }

  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

  function median(sorted) {
    const half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }

  function one(detail, columns, i) {
    return {
      x: columns.start_ms[i] + columns.dur_ms[i] / 2, width: columns.dur_ms[i], steps: [columns.seq[i], columns.seq[i], 1],
      kinds: detail.kinds.map((_, k) => (columns.kind[i] === k ? [columns.dur_ms[i], columns.dur_ms[i], columns.dur_ms[i]] : null)),
      interference: known(columns.interference_ms[i]), stacked: detail.stacked.map((name) => known(columns[name][i]) ?? 0),
      line: (name) => known(columns[name][i]),
    };
  }

  function many(detail, columns, members, x, width) {
    const over = (name) => members.map((i) => columns[name][i]).filter((value) => !Number.isNaN(value));
    const seq = members.map((i) => columns.seq[i]);
    const waits = over("interference_ms");
    return {
      x, width, steps: [Math.min(...seq), Math.max(...seq), members.length],
      kinds: detail.kinds.map((_, k) => {
        const own = members.filter((i) => columns.kind[i] === k).map((i) => columns.dur_ms[i]).sort((a, b) => a - b);
        return own.length ? [median(own), own[0], own.at(-1)] : null;
      }),
      interference: waits.length ? Math.max(...waits) : null,
      stacked: detail.stacked.map((name) => over(name).reduce((sum, value) => sum + value, 0) / members.length),
      line: (name) => mean(over(name)),
    };
  }

  function rowsIn(detail, columns, low, high) {
    const members = inView(columns, low, high);
    if (members.length <= detail.exact) return { exact: true, rows: members.map((i) => one(detail, columns, i)) };
    const width = (high - low) / detail.bins;
    const bins = new Map();
    for (const i of members) {
      const bin = Math.min(detail.bins - 1, Math.max(0, Math.floor((columns.start_ms[i] - low) / width)));
      if (!bins.has(bin)) bins.set(bin, []);
      bins.get(bin).push(i);
    }
    const rows = [...bins.keys()].sort((a, b) => a - b).map((bin) => many(detail, columns, bins.get(bin), low + (bin + 0.5) * width, width));
    return { exact: false, rows };
  }

  function tracesOf(node, figure, detail, view) {
    const { exact, rows } = view;
    const x = rows.map((row) => row.x);
    const customdata = rows.map((row) => row.steps);
    const parts = figure.stacked ? detail.stacked.length : 0;
    return node.data.map((trace, at) => {
      const next = { ...trace, x, customdata };
      const stacked = at - detail.kinds.length - 1;
      if (at < detail.kinds.length) {
        const own = rows.map((row) => row.kinds[at]);
        next.y = own.map((value) => value && value[0]);
        next.error_y = { ...trace.error_y, visible: !exact, array: own.map((value) => value && value[2] - value[0]), arrayminus: own.map((value) => value && value[0] - value[1]) };
        next.hovertemplate = figure.templates[exact ? "exact" : "bins"][at];
      } else if (stacked < 0) {
        next.y = rows.map((row) => row.interference || null);
      } else if (stacked < parts) {
        next.y = rows.map((row) => row.stacked[stacked] || null);
        next.width = rows.map((row) => row.width);
      } else {
        const name = figure.lines[stacked - parts];
        const scale = name === "kv_usage" ? 100 : 1;
        next.y = rows.map((row) => { const value = row.line(name); return value === null ? null : value * scale; });
      }
      return next;
    });
  }

  function zoomable(node, figure, detail) {
    let columns = null;
    const whole = () => {
      columns ??= unpack(detail);
      let end = 0;
      for (let i = 0; i < columns.start_ms.length; i += 1) end = Math.max(end, columns.start_ms[i] + columns.dur_ms[i]);
      return [columns.start_ms[0], end];
    };
    node.on("plotly_relayout", (change) => {
      if (!Object.keys(change).some((key) => /^xaxis\.(?:range|autorange)/.test(key))) return; // colours change too, on paper
      const [first, last] = whole();
      const range = node.layout.xaxis.autorange ? [first, last] : node.layout.xaxis.range.map(Number);
      const view = rowsIn(detail, columns, Math.max(first, range[0]), Math.min(last, range[1]));
      node.dataset.view = `${view.exact ? "steps" : "bins"} ${view.rows.length}`;
      window.Plotly.react(node, tracesOf(node, figure, detail, view), { ...node.layout, datarevision: Date.now() });
    });
  }

  function buttons(node) {
    for (const button of document.querySelectorAll("button[data-zoom]")) {
      button.addEventListener("click", () => {
        const action = button.dataset.zoom;
        if (action === "all") { window.Plotly.relayout(node, { "xaxis.autorange": true }); return; }
        const [low, high] = node.layout.xaxis.range.map(Number);
        const width = high - low;
        const [move, grow] = { left: [-0.5, 0], right: [0.5, 0], in: [0, -0.25], out: [0, 0.5] }[action];
        window.Plotly.relayout(node, { "xaxis.range": [low + (move - grow) * width, high + (move + grow) * width], "xaxis.autorange": false });
      });
    }
  }

  async function place(node, data) {
    const figure = data.figures[node.dataset.figure];
    if (!figure) { node.remove(); return; }
    node.textContent = "";
    const changes = { ...themed(figure.layout), ...(node.clientWidth < NARROW ? figure.narrow : {}) };
    const layout = plain(changes, figure.layout);
    node.style.height = `${layout.height}px`; // when the window changes, plotly asks the page how high the figure is
    await window.Plotly.newPlot(node, figure.data, layout, config);
    node.classList.add("drawn");
    if (node.dataset.figure !== "timeline") return;
    if (data.detail) zoomable(node, figure, data.detail);
    buttons(node);
  }

  async function draw() {
    const places = [...document.querySelectorAll(".plot[data-figure]")];
    try {
      const data = JSON.parse(await inflated("figures-gz"));
      await idle(); // the text is readable before the library starts
      await library();
      performance.mark("library");
      for (const left = [...places]; left.length;) {
        const at = left.findIndex(near);
        if (at < 0) await idle();
        const again = left.findIndex(near);
        const [node] = left.splice(Math.max(again, 0), 1);
        await place(node, data);
        performance.mark(`drawn ${node.dataset.figure}`);
      }
      root.dataset.ready = "yes";
    } catch (error) {
      for (const node of places) if (!node.classList.contains("drawn")) node.textContent = `This figure cannot be drawn: ${error.message}. The tables hold the same numbers.`;
      root.dataset.ready = "failed";
    }
    root.dataset.readyMs = Math.round(performance.now());
  }

  // ---- tips: what a part is, a number's exact value, and the statement behind it

  const tip = byId("tip");

  function tipOf(target) {
    const holder = target.closest?.("[data-tip]");
    if (holder) return holder.dataset.tip;
    const cell = target.closest?.("td");
    const value = cell?.querySelector("data[value]");
    if (!value || value.value === "") return null;
    const unit = /(?:\d|\))\s?(?:ns|µs|ms|s|min)\b/.test(value.textContent) ? " ns" : "";
    const sql = cell.closest("table").caption?.dataset.tip ?? "";
    return `exactly ${value.value}${unit}\n${sql}`.trimEnd();
  }

  function show(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 16}px`;
  }

  document.addEventListener("pointermove", (event) => {
    const text = tipOf(event.target);
    if (text) show(text, event.clientX, event.clientY); else tip.hidden = true;
  });
  document.addEventListener("focusin", (event) => {
    const text = event.target.dataset?.tip;
    if (!text) { tip.hidden = true; return; }
    const box = event.target.getBoundingClientRect();
    show(text, box.left, box.bottom);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

  // ---- tables: sorting by a heading, searching

  function valueOf(cell) {
    const exact = cell.querySelector("data");
    if (!exact) return cell.classList.contains("n") ? null : cell.textContent.toLowerCase();
    return exact.value === "" ? null : Number(exact.value);
  }

  function sortable(table) {
    [...table.tHead.rows[0].cells].forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : head.classList.contains("n");
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const keyed = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[at]), row]);
        keyed.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
        });
        table.tBodies[0].append(...keyed.map(([, row]) => row));
      });
    });
  }

  function searchable(input) {
    const rows = [...byId(input.dataset.search).tBodies[0].rows];
    const texts = rows.map((row) => [row.textContent, ...[...row.cells].map((cell) => cell.title)].join(" ").toLowerCase());
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      rows.forEach((row, at) => {
        row.hidden = !words.every((word) => texts[at].includes(word));
        left += row.hidden ? 0 : 1;
      });
      document.querySelector(`output[for="${input.id}"]`).textContent = `${left.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
    });
  }

  // ---- paper: everything unfolded, in the light colours

  let folded = [];
  let apart = [];

  function resized(size) {
    repaint(size);
    for (const node of document.querySelectorAll(".plot.drawn")) window.Plotly.redraw(node); // else the legend stays in the old one's place
  }

  // A printer gets a picture of each shape that has a pattern, some 10 kB: bars of a trace that look alike become one shape.
  function joined() {
    const before = [];
    for (const trace of document.querySelectorAll(".plot.drawn .trace.bars")) {
      const groups = new Map();
      for (const path of trace.querySelectorAll(".point > path")) {
        if (!path.style.fill.startsWith("url(")) continue;
        before.push([path, path.getAttribute("d")]);
        const look = path.getAttribute("style");
        groups.set(look, [...(groups.get(look) ?? []), path]);
      }
      for (const [first, ...others] of groups.values()) {
        first.setAttribute("d", [first, ...others].map((path) => path.getAttribute("d")).join(""));
        for (const path of others) path.setAttribute("d", "");
      }
    }
    return before;
  }

  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open]):not(.sql)")];
    for (const node of folded) node.open = true;
    root.classList.add("paper");
    resized({ width: PAPER });
    apart = joined();
  });
  addEventListener("afterprint", () => {
    for (const [path, shape] of apart) path.setAttribute("d", shape);
    for (const node of folded) node.open = false;
    root.classList.remove("paper");
    resized({ width: null, autosize: true });
  });

  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("input[data-search]").forEach(searchable);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint());
  draw();
})();
