"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

  // --- charts ---

  const symbols = { // Plotly's names of Matplotlib's markers
    o: "circle", s: "square", "^": "triangle-up", D: "diamond", v: "triangle-down", P: "cross", X: "x",
    "<": "triangle-left", ">": "triangle-right", h: "hexagon", "*": "star", p: "pentagon", d: "diamond-tall",
    8: "octagon", H: "hexagon2",
  };

  // A log axis shows neither what is not positive, nor rounding errors beside the largest value.
  const visible = (value, least) => value !== null && value > least;

  function tracesOf(chart, hidden, log) {
    const ink = colour("--text");
    const means = chart.series.flatMap((each) => each.mean).filter((value) => value !== null);
    const least = log ? data.smallest * Math.max(0, ...means) : -Infinity;
    const bands = [], lines = [];
    for (const each of chart.series) {
      if (hidden.has(each.label)) continue;
      const style = each.style;
      const stroke = style.colour === "#000000" ? ink : style.colour;
      const places = [...each.x.keys()].filter((j) => visible(each.mean[j], least) && (!chart.logX || each.x[j] > 0));
      const top = (j) => each.mean[j] + each.deviation[j];
      const bottom = (j) => {
        const low = each.mean[j] - each.deviation[j];
        return log ? Math.max(low, each.lowest[j]) : low;
      };
      const banded = each.deviation ? places.filter((j) => each.deviation[j] !== null && (!log || bottom(j) > 0)) : [];
      if (banded.some((j) => each.deviation[j] > 0)) {
        const back = [...banded].reverse();
        bands.push({
          x: [...banded, ...back].map((j) => each.x[j]), y: [...banded.map(top), ...back.map(bottom)],
          type: "scatter", mode: "lines", fill: "toself", line: { width: 0 }, fillcolor: stroke, opacity: 0.16,
          hoverinfo: "skip",
        });
      }
      lines.push({
        x: each.x, y: each.mean.map((value) => (visible(value, least) ? value : null)), customdata: each.deviation || [],
        name: each.label, type: "scatter", mode: each.guide ? "lines" : "lines+markers",
        line: { color: stroke, width: each.guide ? 1.4 : 2, dash: style.dash },
        marker: { symbol: symbols[style.marker], size: 7, maxdisplayed: 9, color: stroke },
        hoverinfo: each.label ? "all" : "skip",
        hovertemplate: each.guide ? each.label && "%{fullData.name}<extra></extra>"
          : `<b>%{fullData.name}</b><br>${chart.xTitle}: %{x}<br>%{y:.4g}${each.deviation ? " ± %{customdata:.2g}" : ""}<extra></extra>`,
      });
    }
    return [...bands.reverse(), ...lines.reverse()]; // the first on top
  }

  // Where a log axis has numbers: at powers of ten if there are some, otherwise also between them.
  function logTicks(values) {
    const low = Math.min(...values), high = Math.max(...values), decades = Math.log10(high / low);
    const first = Math.floor(Math.log10(low));
    if (!Number.isFinite(decades)) return {};
    if (decades > 1.7) {
      const every = Math.ceil(decades / 6), powers = [...Array(Math.ceil(decades) + 3).keys()].map((k) => first - 1 + k);
      const found = powers.filter((power) => power % every === 0).map((power) => Number(`1e${power}`));
      return { tickvals: found, ticktext: found.map(tickText) };
    }
    const margin = 10 ** (0.06 * decades + 0.02);
    const inside = (value) => value >= low / margin && value <= high * margin;
    for (const digits of [[1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
      const found = [-1, 0, 1, 2].flatMap((power) => digits.map((digit) => digit * 10 ** (first + power)));
      if (found.filter(inside).length > 2) return { tickvals: found, ticktext: found.map(tickText) };
    }
    const reach = (high - low) / 2 || low / 2, unit = 10 ** Math.floor(Math.log10(reach));
    const step = unit * [5, 2, 1].find((each) => each * unit <= reach);
    const count = Math.floor(high / step) - Math.ceil(low / step) + 5;
    const found = [...Array(count).keys()].map((k) => (Math.ceil(low / step) - 2 + k) * step).filter((value) => value > 0);
    return { tickvals: found, ticktext: found.map(tickText) };
  }

  function tickText(value) {
    if (value >= 1e-3 && value < 1e5) return String(Number(value.toPrecision(6)));
    const [digits, exponent] = value.toExponential(3).split("e");
    const power = `10<sup>${Number(exponent)}</sup>`.replace("-", "−");
    return Number(digits) === 1 ? power : `${Number(digits)} × ${power}`;
  }

  function layoutOf(chart, log, traces) {
    const axis = {
      gridcolor: colour("--plot-grid"), linecolor: colour("--line"), zeroline: false, automargin: true,
      exponentformat: "power", showexponent: "all", tickfont: { size: 12 },
    };
    const positive = (name) => traces.flatMap((trace) => trace[name].filter((_, j) => trace.y[j] !== null)).filter((value) => value > 0);
    const some = traces.some((trace) => trace.y.some((value) => value !== null)); // an empty chart has no axes
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
      margin: { l: 8, r: 12, t: 10, b: 8 }, font: { family: getComputedStyle(document.body).fontFamily, color: colour("--text") },
      xaxis: { ...axis, type: chart.logX ? "log" : "linear", title: { text: chart.xTitle, font: { size: 13 }, standoff: 8 }, nticks: 6, ...(chart.logX ? logTicks(positive("x")) : {}), visible: some },
      yaxis: { ...axis, type: log ? "log" : "linear", nticks: 6, minexponent: 3, ...(log ? logTicks(positive("y")) : { rangemode: "tozero" }), visible: some },
      annotations: some ? [] : [{ text: "no values", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }],
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--line"), activecolor: colour("--text") },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    };
  }

  function draw(panel) {
    const hidden = new Set([...panel.querySelectorAll("input[type=checkbox]:not(:checked)")].map((box) => box.value));
    const choice = panel.querySelector("input[type=radio]:checked");
    for (const place of panel.querySelectorAll(".chart")) {
      const chart = data.charts[place.id];
      const log = !choice || choice.value === "default" ? chart.log : choice.value === "log";
      const traces = tracesOf(chart, hidden, log);
      const before = place.querySelector(".main-svg");
      if (before && before.clientWidth !== place.clientWidth) Plotly.relayout(place, { autosize: true });
      Plotly.react(place, traces, layoutOf(chart, log, traces), {
        responsive: true, displaylogo: false, displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
        toImageButtonOptions: { filename: place.id, scale: 2 },
      });
    }
    panel.dataset.drawn = dark.matches ? "dark" : "light";
  }

  // --- tabs: arrows, Home and End move between them; only the open one is in the order of Tab ---

  function open(tab, focus) {
    for (const each of tabs) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", String(chosen));
      each.tabIndex = chosen ? 0 : -1;
      panelOf(each).hidden = !chosen;
    }
    const strip = tab.parentElement;
    strip.scrollLeft = tab.offsetLeft - strip.offsetLeft - (strip.clientWidth - tab.clientWidth) / 2;
    if (focus) tab.focus({ preventScroll: true });
    draw(panelOf(tab));
  }

  const named = () => tabs.find((tab) => `#${tab.dataset.name}` === decodeURIComponent(location.hash));

  function choose(tab) {
    open(tab, true);
    history.replaceState(null, "", `#${encodeURIComponent(tab.dataset.name)}`);
  }

  tabs.forEach((tab, place) => {
    const last = tabs.length - 1;
    const moves = { ArrowRight: place === last ? 0 : place + 1, ArrowLeft: place === 0 ? last : place - 1, Home: 0, End: last };
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key in moves && !event.altKey && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        choose(tabs[moves[event.key]]);
      }
    });
  });

  for (const panel of document.querySelectorAll("[role=tabpanel]")) {
    panel.addEventListener("change", () => draw(panel));
    for (const button of panel.querySelectorAll("button[data-all]")) {
      button.addEventListener("click", () => {
        for (const box of panel.querySelectorAll("input[type=checkbox]")) box.checked = button.dataset.all === "yes";
        draw(panel);
      });
    }
  }

  // A chart keeps its colours and its size until it is drawn again.
  const drawAgain = () => document.querySelectorAll("[role=tabpanel]:not([hidden])").forEach(draw);
  dark.addEventListener("change", drawAgain);
  addEventListener("hashchange", () => named() && open(named(), false));
  open(named() || tabs[0], false);
})();
