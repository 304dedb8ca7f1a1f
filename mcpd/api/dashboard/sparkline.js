// A sparkline of a server's recent latency.

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, facts) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(facts)) element.setAttribute(name, value);
  return element;
}

/** Draw `values` (null: not measured), newest at the right, scaled from zero so that heights are comparable. */
export function sparkline(values, label, width = 72, height = 18) {
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": label });
  const top = Math.max(...values.filter((value) => value !== null), 0.001);
  const step = (width - 4) / Math.max(1, values.length - 1);
  const points = values
    .map((value, index) => value !== null && [2 + index * step, height - 2 - (value / top) * (height - 4)].map((n) => n.toFixed(1)))
    .filter(Boolean);
  svg.append(draw("path", { class: "base", d: `M2 ${height - 1.5}H${width - 2}` }));
  if (points.length > 1) svg.append(draw("polyline", { points: points.map((point) => point.join(",")).join(" ") }));
  if (points.length) svg.append(draw("circle", { cx: points.at(-1)[0], cy: points.at(-1)[1], r: 2 }));
  return svg;
}
