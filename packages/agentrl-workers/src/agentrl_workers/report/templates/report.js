// Hovering a chart shows every series' value at the nearest step; leaving it, the latest.
for (const chart of document.querySelectorAll("figure.chart")) {
  const svg = chart.querySelector("svg");
  const cursor = svg.querySelector(".cursor");
  const at = chart.querySelector(".at");
  const note = at.textContent;
  const xs = chart.dataset.xs.split("|");
  const positions = chart.dataset.positions.split("|").map(Number);
  const keys = [...chart.querySelectorAll("[data-values]")].map((element) => ({
    element,
    latest: element.textContent,
    values: element.dataset.values.split("|"),
  }));
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    let nearest = 0;
    positions.forEach((position, index) => {
      if (Math.abs(position - x) < Math.abs(positions[nearest] - x)) nearest = index;
    });
    cursor.removeAttribute("hidden");
    cursor.setAttribute("transform", `translate(${positions[nearest]} 0)`);
    at.textContent = `step ${xs[nearest]}`;
    for (const key of keys) key.element.textContent = key.values[nearest];
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("hidden", "");
    at.textContent = note;
    for (const key of keys) key.element.textContent = key.latest;
  });
}
