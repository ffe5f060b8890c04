// What ECharts draws of a chart beside its own marks: bars in lanes, intervals, bands; and quantities with prefixes.
window.neusight = (() => {
  const scaled = (value, unit) => {
    if (!unit) return value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? 3 : 6 });
    if (unit === "%") return `${+value.toPrecision(3)} %`;
    const large = [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1]];
    const small = [["m", 1e-3], ["µ", 1e-6], ["n", 1e-9], ["p", 1e-12]];
    if (!value) return `0 ${unit}`;
    const [prefix, factor] = [...large, ...small].find(([, f]) => Math.abs(value) >= f * 0.9999) || ["p", 1e-12];
    return `${+(value / factor).toPrecision(3)} ${prefix}${unit}`;
  };
  const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  const note = (mark) => {
    const said = mark.data && mark.data.note;
    if (!said) return escaped(mark.seriesName);
    if (typeof said === "string") return escaped(said).replace(/\n/g, "<br>");
    const lines = said.figures.map(([name, value, unit]) => `${escaped(name)}: ${scaled(value, unit)}`);
    return [`<b>${escaped(said.what)}</b>`, ...lines].join("<br>");
  };
  const readable = (colour) => {
    const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);
    const [r, g, b] = parts.map((p) => (p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
  };
  const lane = (name) => {
    const most = window.innerWidth < 600 ? 18 : 44, half = (most - 1) >> 1;
    return name.length > most ? `${name.slice(0, half)}…${name.slice(-half)}` : name;
  };
  const bar = (params, api) => {
    const lane = api.value(2), fill = api.visual("color"), label = String(api.value(3) || "");
    const [from, to] = [api.coord([api.value(0), lane]), api.coord([api.value(1), lane])];
    const height = api.size([0, 1])[1] * 0.72;
    const x = Math.min(from[0], to[0]), width = Math.max(1, Math.abs(to[0] - from[0]));
    const mark = api.value(0) === api.value(1);
    const shape = { x: mark ? x - 1.5 : x, y: from[1] - height / 2, width: mark ? 3 : width, height };
    const children = [{ type: "rect", shape, style: mark ? { fill } : { fill, stroke: "rgba(255,255,255,0.6)", lineWidth: 0.5 } }];
    const long = 6.2 * label.length + 6, beside = api.value(4);
    if (label && width <= long && !Number.isNaN(beside)) {
      const right = api.coord([beside, lane])[0] + 5, fits = right + long < params.coordSys.x + params.coordSys.width;
      const style = { text: label, x: fits ? right : x - 5, y: from[1], fill: "#333333", fontSize: 11, align: fits ? "left" : "right", verticalAlign: "middle" };
      children.push({ type: "text", style, silent: true });
    }
    if (label && width > long) {
      const style = { text: label, x: x + width / 2, y: from[1], fill: readable(fill), fontSize: 11, align: "center", verticalAlign: "middle" };
      children.push({ type: "text", style, silent: true });
    }
    return { type: "group", children };
  };
  const whisker = (params, api) => {
    const [a, b] = [api.coord([api.value(0), api.value(1)]), api.coord([api.value(2), api.value(3)])];
    const across = a[1] === b[1], stroke = "#333333", style = { stroke, lineWidth: 1.2, opacity: 0.75 };
    if (api.value(4)) for (const end of [a, b]) end[1] += 0.27 * api.size([0, 1])[1];
    const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style });
    const cap = ([x, y]) => (across ? line(x, y - 4, x, y + 4) : line(x - 4, y, x + 4, y));
    return { type: "group", children: [line(...a, ...b), cap(a), cap(b)] };
  };
  const band = (params, api) => {
    const at = (x, y) => api.coord([api.value(x), api.value(y)]);
    const points = [at(0, 1), at(3, 4), at(3, 5), at(0, 2)];
    return { type: "polygon", shape: { points }, style: { fill: api.visual("color"), opacity: 0.16 } };
  };
  const knees = (labels) => (params, api) => {
    let above = Infinity;
    const children = labels.map(([text, ...point]) => {
      const [x, y] = api.coord(point), left = params.coordSys.x + 6.2 * text.length;
      above = Math.min(y - 1, above - 12);
      return { type: "text", style: { text, x: Math.max(x - 4, left), y: above, fill: "#333333", fontSize: 10, align: "right", verticalAlign: "bottom" } };
    });
    return { type: "group", children };
  };
  const live = (value) => {
    if (Array.isArray(value)) return value.map(live);
    if (!value || typeof value !== "object") return value;
    const known = ([key, each]) => (key.startsWith(":") ? [key.slice(1), new Function(`return (${each})`)()] : [key, live(each)]);
    return Object.fromEntries(Object.entries(value).map(known));
  };
  // Parts of a chart that are as they were are not drawn from anew.
  const drawn = new Map();
  const draw = (charts) => {
    for (const [id, options] of charts) {
      const plot = getElement(id);
      if (!plot || !plot.chart) continue;
      const before = drawn.get(id) ?? plot.options, notMerge = options.series.length !== before.series.length;
      const other = ([key, part]) => notMerge || JSON.stringify(part) !== JSON.stringify(before[key]);
      plot.chart.setOption(live(Object.fromEntries(Object.entries(options).filter(other))), { notMerge });
      drawn.set(id, options);
    }
  };
  return { scaled, note, lane, draw, bar, whisker, band, knees };
})();
