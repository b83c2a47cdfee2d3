"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = window.matchMedia("(max-width: 640px)");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null; // by the switch; until then the system decides

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

  const draw = () => {
    const isDark = chosen === null ? dark.matches : chosen === "dark";
    root.dataset.theme = isDark ? "dark" : "light";
    button.textContent = isDark ? "light" : "dark";
    for (const [name, figure] of Object.entries(figures)) {
      document.getElementById(`figure-${name}`).style.height = `${figure.layout.height}px`;
      Plotly.react(`figure-${name}`, painted(figure.data), laidOut(figure), { responsive: true, displaylogo: false, displayModeBar: false });
    }
  };

  button.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    draw();
  });
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  draw();
})();
