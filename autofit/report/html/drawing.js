"use strict";
// Draws figures of plotly.js in the colours of the page; `var:NAME` in a figure is that colour.
const drawing = (() => {
  const root = document.documentElement;
  const narrow = window.matchMedia("(max-width: 640px)");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null; // by the switch; until then the system decides
  let redraw = () => {};

  const color = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  // A copy in which `var:NAME` is that colour of the page.
  const painted = (value) => {
    if (typeof value === "string") return value.startsWith("var:") ? color(value.slice(4)) : value;
    if (Array.isArray(value)) return value.map(painted);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, painted(part)]));
  };

  const axis = (given) => ({
    gridcolor: color("line"), linecolor: color("muted"), tickcolor: color("muted"), automargin: true, ...given,
  });

  // Of its legend, which stands below it.
  const numRows = (figure) => {
    const named = figure.data.filter((trace) => trace.name && trace.showlegend !== false);
    return named.length < 2 ? 0 : Math.ceil(named.length / (narrow.matches ? 2 : 6));
  };

  const laidOut = (figure) => {
    const layout = painted(figure.layout);
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow.matches ? 11 : 13, color: color("ink") },
      margin: layout.margin || { l: 10, r: narrow.matches ? 10 : 30, t: 34, b: 48 + 22 * numRows(figure) },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      legend: { ...layout.legend, orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom" },
      hoverlabel: { bgcolor: color("panel"), bordercolor: color("muted"), font: { color: color("ink") } },
    };
  };

  const draw = (id, figure) => {
    document.getElementById(id).style.height = `${figure.layout.height}px`;
    Plotly.react(id, painted(figure.data), laidOut(figure), { responsive: true, displaylogo: false, displayModeBar: false });
  };

  const setTheme = () => {
    const isDark = chosen === null ? dark.matches : chosen === "dark";
    root.dataset.theme = isDark ? "dark" : "light";
    button.textContent = isDark ? "light" : "dark";
    redraw();
  };

  // Calls a function that draws all figures: now, and where theme or width change.
  const begin = (drawAll) => {
    redraw = drawAll;
    button.addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      setTheme();
    });
    dark.addEventListener("change", setTheme);
    narrow.addEventListener("change", setTheme);
    setTheme();
  };

  return { begin, draw };
})();
