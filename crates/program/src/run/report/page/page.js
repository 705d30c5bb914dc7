"use strict";
// Figures under the pointer. Everything is on the page without this.
(function () {
  const series = JSON.parse(document.getElementById("report").textContent).series;
  const ends = series.end_seconds, total = ends[ends.length - 1];
  const scaled = (value, units, step) => {
    let at = 0;
    while (at + 1 < units.length && value >= step) { value /= step; at += 1; }
    return (value < 10 && value % 1 ? value.toFixed(1) : value.toFixed(0)) + " " + units[at];
  };
  const shown = {
    bytes: (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024),
    rate: (value, seconds) => Math.round(value / seconds).toLocaleString("en").replaceAll(",", "\u202f") + "/s",
    us: (value) => scaled(value, ["µs", "ms", "s"], 1000),
  };
  const charts = document.querySelectorAll(".chart");
  const point = (share) => {
    let at = share === null ? -1 : ends.findIndex((end) => end >= share * total);
    const start = at > 0 ? ends[at - 1] : 0;
    for (const chart of charts) {
      const place = at < 0 ? "" : `M${1000 * share} 0V200`;
      chart.querySelector(".cursor").setAttribute("d", place);
      chart.querySelector(".at").textContent = at < 0 ? "" : `at ${ends[at].toFixed(2)} s`;
      for (const key of chart.querySelectorAll("b[data-column]")) {
        const value = at < 0 ? null : series[key.dataset.column][at];
        key.textContent = value === null ? "" : shown[chart.dataset.unit](value, ends[at] - start);
      }
    }
  };
  for (const plot of document.querySelectorAll(".plot svg")) {
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      point(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
    });
    plot.addEventListener("pointerleave", () => point(null));
  }
})();
