"use strict";
// Draws the figures of a report. Each holds a specification with blanks, which the reader's choices fill.

const report = JSON.parse(document.getElementById("report").textContent);

function fill(value, blanks) {
  if (Array.isArray(value)) return value.map((inner) => fill(inner, blanks));
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([key, inner]) =>
      [key, key === "domain" && Array.isArray(inner) ? inner : fill(inner, blanks)]));
  if (typeof value !== "string" || !value.includes("$")) return value;
  if (value in blanks) return blanks[value];
  const names = Object.keys(blanks).sort((a, b) => b.length - a.length);
  return names.reduce((text, name) => text.split(name).join(String(blanks[name])), value);
}

// The page has legends of its own, which a narrow screen can wrap.
function unlegended(value) {
  if (Array.isArray(value)) return value.map(unlegended);
  if (!value || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) =>
    [key, key === "legend" ? null : unlegended(inner)]));
}

function chosen(figure, box) {
  const blanks = {};
  const selects = box.querySelectorAll("select");
  figure.choices.forEach((options, place) =>
    Object.assign(blanks, options[selects[place] ? selects[place].value : 0]));
  return fill(figure.spec, blanks);
}

async function draw(figure, box) {
  const plot = box.querySelector(".plot");
  const spec = { ...unlegended(chosen(figure, box)), datasets: figure.rows, config: report.config };
  spec.autosize = { type: "fit-x", contains: "padding" };
  try {
    plot.result?.finalize();
    plot.result = await vegaEmbed(plot, spec, { actions: false, renderer: "svg", tooltip: { theme: "plain" } });
    plot.dataset.drawn = "yes";
  } catch (error) {
    plot.textContent = `This figure could not be drawn: ${error.message}`;
    throw error;
  }
}

// A picture is drawn beside the page, with colours in place of CSS variables, which a canvas does not know.
function coloured(value, style) {
  if (Array.isArray(value)) return value.map((inner) => coloured(inner, style));
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, coloured(inner, style)]));
  const name = typeof value === "string" && /^var\((--\w+)\)$/.exec(value);
  return name ? style.getPropertyValue(name[1]).trim() : value;
}

async function save(figure, box, name) {
  const style = getComputedStyle(document.documentElement);
  const background = style.getPropertyValue("--paper").trim();
  const config = { ...report.config, background };
  const spec = {
    ...coloured({ ...chosen(figure, box), config }, style),
    datasets: figure.rows, title: figure.title, width: 760, padding: 24,
  };
  const { view } = await vegaEmbed(document.createElement("div"), spec, { actions: false, renderer: "svg" });
  const link = document.createElement("a");
  link.href = await view.toImageURL("png", 2);
  link.download = `${name}.png`;
  link.click();
  view.finalize();
}

for (const [name, figure] of Object.entries(report.figures)) {
  const box = document.getElementById(`figure-${name}`);
  box.querySelectorAll("select").forEach((select) => select.addEventListener("change", () => draw(figure, box)));
  box.querySelector("button").addEventListener("click", () => save(figure, box, name));
  draw(figure, box);
}
