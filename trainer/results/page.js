// Shows the values at the pointer below each chart. The page is complete without it.
for (const chart of document.querySelectorAll("svg.chart[data-x]")) {
  const numbers = (name) => chart.dataset[name].split(" ").map(Number);
  const [left, right, bottom, top] = numbers("box"), [x0, x1] = numbers("x"), isLog = chart.dataset.log === "1";
  const [y0, y1] = numbers("y").map((value) => (isLog ? Math.log10(value) : value));
  const lines = [...chart.querySelectorAll("polyline")].map((line) => ({
    name: line.dataset.name, points: line.getAttribute("points").split(" ").map((point) => point.split(",").map(Number)),
  }));
  const readout = chart.closest("figure").querySelector(".readout"), before = readout.textContent;
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor"); cursor.setAttribute("y1", top); cursor.setAttribute("y2", bottom);
  const write = (value) => Number(value.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 });
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    const near = lines.map(({ name, points }) => [name, points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a))]);
    const x = near.map(([, point]) => point[0]).reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a));
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); chart.append(cursor);
    const step = Math.round(x0 + (x - left) / (right - left) * (x1 - x0));
    readout.textContent = `step ${step.toLocaleString("en-US")}: ` + near.map(([name, point]) => {
      const value = y0 + (point[1] - bottom) / (top - bottom) * (y1 - y0);
      return `${name} ${write(isLog ? 10 ** value : value)}`;
    }).join(", ");
  });
  chart.addEventListener("pointerleave", () => { cursor.remove(); readout.textContent = before; });
}
